// Elements of one type that become those of another.
//
// Threads: any. Memory: the caller's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace penstock {

// How elements of one type become those of another: `from` holds `count` of them.
using Convert = void (*)(const std::uint8_t* from, std::size_t count, std::uint8_t* to);

// Null: types where the result could be another one than torch's.
[[nodiscard]] Convert converter_of(DType from, DType to);

}  // namespace penstock
