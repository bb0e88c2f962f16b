// The part of DLPack's C exchange API that is used (dlpack.h of DLPack 1.3, DLPackExchangeAPI): torch's tensors without
// torch's headers.
//
// Threads: its functions are called with Python's lock held. Memory: the table is torch's, for the life of the process.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace penstock {

// DLManagedTensorVersioned.
struct ManagedTensor {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedTensor* self);
  std::uint64_t flags;
  nanobind::dlpack::dltensor tensor;
};

struct ExchangeApi {
  std::uint32_t major, minor;
  ExchangeApi* previous;
  void* allocator;
  void* from_object;
  int (*to_object)(ManagedTensor* tensor, void** out);  // takes the tensor; -1 and a Python error where it cannot
  int (*view)(void* object, nanobind::dlpack::dltensor* out);  // borrows; -1 and a Python error where there is none
  void* current_stream;
};

inline constexpr std::uint32_t kExchangeMajor = 1;

// The table of a capsule, torch.Tensor.__dlpack_c_exchange_api__. Throws nb::value_error.
inline const ExchangeApi* exchange_api(const nanobind::capsule& capsule) {
  const auto* api = static_cast<const ExchangeApi*>(capsule.data("dlpack_exchange_api"));
  while (api != nullptr && api->major != kExchangeMajor) api = api->previous;
  if (api == nullptr) throw nanobind::value_error("another DLPack than version 1");
  return api;
}

}  // namespace penstock
