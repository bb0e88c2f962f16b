// Rows of decoded pixels, copied to where an image lies without bytes between its rows.
//
// Threads: a pure function of its arguments. Memory: the caller's; source and image do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

// What of each pixel: all of it, red and blue exchanged, or only its first byte.
enum class PixelBytes : std::uint8_t { rgb, bgr, first };

// height x width pixels of three bytes, whose rows are `stride` bytes apart, to out.
void copy_rows(const std::uint8_t* rgb, std::ptrdiff_t stride, int height, int width, PixelBytes what,
               std::uint8_t* out) noexcept;

}  // namespace penstock
