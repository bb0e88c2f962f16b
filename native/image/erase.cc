#include "image/erase.h"

#include <cmath>
#include <cstddef>
#include <cstring>

namespace penstock {

std::optional<Box> RandomErasing::draw(TorchGenerator& generator, int height, int width) const {
  if (generator.rand() >= p) return std::nullopt;
  const double area = static_cast<double>(height) * width;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double erased = area * generator.uniform(scale[0], scale[1]);
    const double ratio = static_cast<float>(std::exp(generator.uniform(log_ratio[0], log_ratio[1])));
    const double rows = std::nearbyint(std::sqrt(erased * ratio)), columns = std::nearbyint(std::sqrt(erased / ratio));
    if (!(rows < height && columns < width)) continue;
    const int h = static_cast<int>(rows), w = static_cast<int>(columns);
    const int top = static_cast<int>(generator.below(static_cast<std::uint32_t>(height - h + 1)));
    const int left = static_cast<int>(generator.below(static_cast<std::uint32_t>(width - w + 1)));
    return Box{left, top, left + w, top + h};
  }
  return std::nullopt;
}

void erase(const Output& output, int fill, Box box, int height, int width, std::uint8_t* row) {
  const Fill& with = output.fills[static_cast<std::size_t>(fill)];
  const std::size_t size = info(output.dtype).size;
  const bool planar = output.layout == Layout::chw;
  const std::ptrdiff_t across = planar ? 1 : output.channels, channel = planar ? std::ptrdiff_t{height} * width : 1;
  for (int c = 0; c < output.channels; ++c) {
    const std::uint64_t& element = with.element[static_cast<std::size_t>(c)];
    for (int y = box.y0; y < box.y1; ++y) {
      std::ptrdiff_t at = channel * c + (std::ptrdiff_t{y} * width + box.x0) * across;
      for (int x = box.x0; x < box.x1; ++x, at += across)
        std::memcpy(row + at * static_cast<std::ptrdiff_t>(size), &element, size);
    }
  }
}

}  // namespace penstock
