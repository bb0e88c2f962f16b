// torchvision's gaussian_blur of an 8-bit picture: torch's conv2d of float32 planes, bit for bit.
//
// The sums are oneDNN's for a depthwise convolution: row by row of the weights, each product added by one fused step. Its
// source is not followed; src/penstock/recipe/effects.py compares results for each size of pictures.
//
// Threads: pure functions; a Weights object is immutable. Memory: pictures are the caller's; a call allocates the planes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/resize.h"

namespace penstock {

struct BlurWeights {
  int height = 0, width = 0;  // both odd
  bool second = false;        // torchvision.transforms.v2 computes the values
  std::vector<float> values;  // height x width
};

// Whether this processor has the instructions.
[[nodiscard]] bool can_blur();

// Whether a picture is large enough for its edges to be reflected.
[[nodiscard]] bool can_blur(const BlurWeights& weights, int height, int width);

// Only where can_blur() says so.
void blur(const BlurWeights& weights, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride);

}  // namespace penstock
