// Pixels for Python: numpy's, and those of a JPEG decoder.
//
// Threads: any that holds Python's lock, which is released while an image is decoded. Memory: an array owns its pixels; the
// bytes of a file are borrowed for the call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "bind/gil_released.h"
#include "image/jpeg.h"

namespace penstock {

using Corners = std::tuple<int, int, int, int>;  // x0, y0, x1, y1

inline Box box_of(const Corners& c) { return {std::get<0>(c), std::get<1>(c), std::get<2>(c), std::get<3>(c)}; }

// An array that owns these pixels.
inline nanobind::object array_of(std::unique_ptr<std::uint8_t[]> pixels, std::size_t height, std::size_t width,
                                 std::size_t channels, std::size_t ndim = 3) {
  std::uint8_t* const raw = pixels.get();
  nanobind::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<std::uint8_t*>(p); });
  static_cast<void>(pixels.release());  // the capsule's
  const std::size_t shape[3] = {height, width, channels};
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, std::uint8_t>(raw, ndim, shape, owner));
}

// The pixels of a box of an image, or of all of it; or the reason why there are none.
inline nanobind::object decoded(JpegDecoder& decoder, const nanobind::bytes& data, const std::optional<Corners>& corners,
                                std::uint64_t max_pixels, jpeg::RowStates* states = nullptr) {
  const auto* const bytes = static_cast<const std::uint8_t*>(data.data());
  const std::size_t size = data.size();
  std::unique_ptr<std::uint8_t[]> out;
  Box box;
  Outcome outcome;
  {
    const GilReleased released;
    outcome = decoder.open(bytes, size, max_pixels);
    box = corners ? box_of(*corners) : Box{0, 0, decoder.width(), decoder.height()};
    const std::uint8_t* pixels = nullptr;
    std::ptrdiff_t stride = 0;
    if (outcome.ok()) outcome = decoder.decode(box, pixels, stride, states);
    if (outcome.ok()) {
      const std::size_t row = static_cast<std::size_t>(box.width()) * 3;
      out = std::make_unique_for_overwrite<std::uint8_t[]>(row * static_cast<std::size_t>(box.height()));
      for (int y = 0; y < box.height(); ++y, pixels += stride) std::memcpy(out.get() + row * static_cast<std::size_t>(y), pixels, row);
    }
  }
  if (!outcome.ok()) return nanobind::cast(outcome.reason);
  return array_of(std::move(out), static_cast<std::size_t>(box.height()), static_cast<std::size_t>(box.width()), 3);
}

}  // namespace penstock
