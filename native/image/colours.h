// Colours of all pixels of an 8-bit picture, changed pixel by pixel with Pillow's arithmetic (libImaging's Blend.c,
// Convert.c and Filter.c).
//
// Threads: pure functions. Memory: pictures are the caller's; a result has the picture's size and does not overlap it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "image/resize.h"

namespace penstock {

// ImagingBlend of one value: what lies between `from` (factor 0) and `to` (factor 1), or beyond.
inline std::uint8_t blended(int from, int to, float factor) {
  const float value = static_cast<float>(from) + factor * static_cast<float>(to - from);
  return static_cast<std::uint8_t>(static_cast<int>(std::min(std::max(value, 0.0f), 255.0f)));
}

// convert("L") of a pixel.
inline int grey_of(const std::uint8_t* rgb) {
  return static_cast<int>((19595u * rgb[0] + 38470u * rgb[1] + 7471u * rgb[2] + 0x8000u) >> 16);
}

// ImageEnhance.Color of a picture of three channels.
void change_saturation(float factor, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride);

// convert("HSV"), H + shift modulo 256, and back, of a picture of three channels.
void change_hue(std::uint8_t shift, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride);

// ImageEnhance.Sharpness. The pixels at the edges stay.
void change_sharpness(float factor, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride);

}  // namespace penstock
