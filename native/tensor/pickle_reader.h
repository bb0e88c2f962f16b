// The pickle of one dense tensor, read without executing anything.
//
// Format: the protocol 2 pickle that torch.save writes for a plain torch.Tensor (torch/_tensor.py,
// Tensor.__reduce_ex__): one call of torch._utils._rebuild_tensor_v2 or _rebuild_tensor_v3. The reader
// accepts that one production, opcode by opcode; all else is left to torch.load(weights_only=True).
// Threads: a pure function. Memory: `key` points into the bytes given.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tensor/dtype.h"

namespace penstock {

struct PickledTensor {
  TensorSpec spec;
  std::array<std::int64_t, kMaxDims> stride{};  // elements; never negative
  std::int64_t storage_offset = 0;              // elements; never negative
  std::uint64_t storage_bytes = 0;
  std::string_view key;                         // of the storage: the record data/<key>
};

// nullptr, or why the pickle is left to torch.load (a string with static storage duration).
[[nodiscard]] const char* read_tensor_pickle(std::string_view bytes, PickledTensor& tensor);

}  // namespace penstock
