#include <algorithm>

#include "image/resize_kernels.h"

namespace penstock {
namespace {

[[nodiscard]] std::uint8_t clip8(std::int32_t sum, int precision) {
  return static_cast<std::uint8_t>(std::clamp(sum >> precision, 0, 255));
}

}  // namespace

void horizontal_scalar(const std::uint8_t* row, int origin, int channels, const AxisTable& table, std::uint8_t* dst) {
  const std::int32_t* weight = table.weight.data();
  const std::int32_t half = 1 << (table.precision - 1);
  for (const Span& span : table.span) {
    const std::uint8_t* source = row + static_cast<std::ptrdiff_t>(span.first - origin) * channels;
    for (int c = 0; c < channels; ++c) {
      std::int32_t sum = half;
      for (int j = 0; j < span.count; ++j) sum += source[j * channels + c] * weight[j];
      *dst++ = clip8(sum, table.precision);
    }
    weight += table.taps;
  }
}

void vertical_scalar(const std::uint8_t* const* rows, int count, const std::int32_t* weight, int precision,
                     std::size_t bytes, std::uint8_t* dst) {
  const std::int32_t half = 1 << (precision - 1);
  for (std::size_t i = 0; i < bytes; ++i) {
    std::int32_t sum = half;
    for (int j = 0; j < count; ++j) sum += rows[j][i] * weight[j];
    dst[i] = clip8(sum, precision);
  }
}

}  // namespace penstock
