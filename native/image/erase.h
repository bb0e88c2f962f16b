// Erasing: a rectangle of a finished batch row gets one value a channel.
//
// Threads: a pure function and plain values. Memory: the row is the caller's.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "image/box.h"
#include "image/convert.h"
#include "order/torch_generator.h"

namespace penstock {

// torchvision's RandomErasing, the last step of a recipe but for conversions.
struct RandomErasing {
  double p = 0.5;
  std::array<double, 2> scale{0.02, 0.33}, log_ratio{};
  int fill = 0;  // index into Output::fills

  // The rectangle for a result of this size, none where nothing is erased. The draws are those of torchvision's
  // get_params; the exponential, float32, is rounded correctly, and torch's may be the next number to it.
  [[nodiscard]] std::optional<Box> draw(TorchGenerator& generator, int height, int width) const;
};

// Writes a fill's elements into the box of a row of height x width pixels.
void erase(const Output& output, int fill, Box box, int height, int width, std::uint8_t* row);

}  // namespace penstock
