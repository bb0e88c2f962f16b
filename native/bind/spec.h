// The shape and element type of rows, as Python sees them.
//
// Threads: with Python's lock held. Memory: what is returned is the caller's.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace penstock {

// Throws ValueError, as the next one does.
inline DType dtype_named(const std::string& name) {
  const auto found = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeInfo& one) { return one.torch_name == name; });
  if (found == kDTypes.end()) throw nanobind::value_error(("no native dtype " + name).c_str());
  return static_cast<DType>(found - kDTypes.begin());
}

inline TensorSpec make_spec(const std::string& dtype, const std::vector<std::int64_t>& shape) {
  TensorSpec spec;
  spec.dtype = dtype_named(dtype);
  if (shape.size() > kMaxDims) throw nanobind::value_error("more dimensions than the native core takes");
  spec.ndim = static_cast<std::uint8_t>(shape.size());
  std::copy(shape.begin(), shape.end(), spec.shape.begin());
  std::int64_t bytes = 0;
  if (!checked_bytes(spec, bytes)) throw nanobind::value_error("a shape too large, or with a negative extent");
  return spec;
}

inline std::size_t bytes_of(const TensorSpec& spec) {
  std::int64_t bytes = 0;
  if (!checked_bytes(spec, bytes)) throw nanobind::value_error("a shape too large");
  return static_cast<std::size_t>(bytes);
}

inline nanobind::tuple shape_of(const TensorSpec& spec) {
  nanobind::list shape;
  for (int d = 0; d < spec.ndim; ++d) shape.append(spec.shape[d]);
  return nanobind::tuple(shape);
}

}  // namespace penstock
