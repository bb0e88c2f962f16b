// torchvision's gaussian_blur of an 8-bit picture: torch's conv2d of float32 planes, bit for bit.
//
// The sums are oneDNN's for a depthwise convolution: row by row of the weights, each product added by one fused step. Its
// source is not followed; src/penstock/recipe/effects.py compares results for each size of pictures.
//
// Threads: any thread may call any function; a Weights object is immutable. Memory: pictures are the caller's; a call
// allocates the planes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "image/resize.h"

namespace penstock {

struct BlurWeights {
  int height = 0, width = 0;  // both odd
  bool second = false;        // torchvision.transforms.v2 computes the values
  std::vector<float> values;  // height x width
};

// Keeps the weights of a sigma for the samples that will draw it: torch computes them, before native threads need them.
// The oldest are forgotten where there are many.
void keep_weights(std::shared_ptr<const BlurWeights> weights, double sigma);

// Weights that were kept for this sigma; null: there are none.
[[nodiscard]] std::shared_ptr<const BlurWeights> kept_weights(int height, int width, bool second, double sigma);

// Whether this processor has the instructions.
[[nodiscard]] bool can_blur();

// Whether a picture is large enough for its edges to be reflected.
[[nodiscard]] bool can_blur(const BlurWeights& weights, int height, int width);

// Only where can_blur() says so.
void blur(const BlurWeights& weights, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride);

}  // namespace penstock
