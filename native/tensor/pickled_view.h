// A tensor in a pickle: a view of a storage.
//
// Threads: plain values and pure functions. Memory: nothing is owned or allocated.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/zip_directory.h"

namespace penstock {

struct PickledStorage {
  DType dtype = DType::u8;
  bool untyped = false;
  bool wanted = false;
  bool cpu = false;              // it was saved from the CPU
  std::uint32_t users = 0;       // wanted tensors
  FileRange range;               // of its bytes in the file
  std::uint32_t crc = 0;         // as StorageRecord::crc
};

// A view of a storage. [offset, offset + reach) lies inside the storage's bytes.
struct PickledView {
  TensorSpec spec;
  std::array<std::int64_t, kMaxDims> stride{};  // elements; never negative
  std::int64_t storage_offset = 0;              // elements; never negative
  std::uint32_t storage = 0;
  std::uint32_t hooks = 0;       // the object that holds the tensor's hooks: an empty ordered dict
  bool requires_grad = false;
  bool whole = false;            // it spans its storage from the first byte to the last, and is not empty
  std::uint64_t reach = 0;       // bytes from its first element to the end of the farthest; 0: it is empty
};

// Whether torch lets tensors of this type require grad.
[[nodiscard]] bool may_require_grad(DType dtype);

// nullptr where the view, of numbers that are not negative, lies inside the `bytes` of its storage, and then sets
// `whole` and `reach`; else why the file is left to torch.load.
[[nodiscard]] const char* check_view(PickledView& view, std::uint64_t bytes);

}  // namespace penstock
