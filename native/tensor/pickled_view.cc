#include "tensor/pickled_view.h"

#include <string_view>

namespace penstock {

bool may_require_grad(DType dtype) {
  const std::string_view name = info(dtype).torch_name;
  return name.starts_with("float") || name.starts_with("bfloat") || name.starts_with("complex");
}

const char* check_view(PickledView& view, std::uint64_t bytes) {
  constexpr const char* kOutside = "it holds a view that reaches outside its storage";
  std::int64_t total = 0;
  if (!checked_bytes(view.spec, total)) return kOutside;
  const std::uint64_t item = info(view.spec.dtype).size;
  if (total == 0) return nullptr;  // wherever it begins: so does torch
  std::uint64_t last = static_cast<std::uint64_t>(view.storage_offset);
  for (int d = 0; d < view.spec.ndim; ++d) {
    std::uint64_t span = 0;
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(view.spec.shape[d] - 1),
                               static_cast<std::uint64_t>(view.stride[d]), &span) ||
        __builtin_add_overflow(last, span, &last))
      return kOutside;
  }
  if (last >= bytes / item) return kOutside;
  view.reach = (last + 1 - static_cast<std::uint64_t>(view.storage_offset)) * item;
  view.whole = view.storage_offset == 0 && (last + 1) * item == bytes;
  return nullptr;
}

}  // namespace penstock
