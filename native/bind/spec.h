// The shape and element type of rows, as Python sees them.
//
// Threads: with Python's lock held. Memory: what is returned is the caller's.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

#include "tensor/dtype.h"

namespace penstock {

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
