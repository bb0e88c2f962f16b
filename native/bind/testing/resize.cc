// The resizer by itself.
//
// Threads: any; Python's lock is released while it works. Memory: images are borrowed for the call, results are numpy's.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "bind/pixels.h"
#include "bind/testing/testing.h"
#include "image/resize.h"

namespace nb = nanobind;

namespace penstock {
namespace {

using Image = nb::ndarray<const std::uint8_t, nb::device::cpu>;

template <class Enum, std::size_t kSize>
Enum by_name(const std::array<std::string_view, kSize>& names, const std::string& name) {
  for (std::size_t i = 0; i < kSize; ++i)
    if (names[i] == name) return static_cast<Enum>(i);
  throw nb::value_error(("unknown name '" + name + "'").c_str());
}

Filter filter_of(const std::string& name) {
  return by_name<Filter, 5>({"nearest", "bilinear", "bicubic", "lanczos", "nearest-exact"}, name);
}

Arithmetic arithmetic_of(const std::string& name) {
  return by_name<Arithmetic, 4>({"pillow", "torch_u8", "torch_f32", "pillow_12"}, name);
}

// The image as a part: all of it, or with `origin` the part at (x0, y0) of a (full_width, full_height) image.
ImagePart part_of(const Image& image, const std::optional<Corners>& origin) {
  const bool grey = image.ndim() == 2;
  if (!grey && image.ndim() != 3)
    throw nb::value_error("image: needs the shape (height, width) or (height, width, channels)");
  constexpr std::size_t most = Resizer::kMaxExtent;
  if (image.shape(0) > most || image.shape(1) > most) throw nb::value_error("image: too large");
  const std::int64_t channels = grey ? 1 : static_cast<std::int64_t>(std::min<std::size_t>(image.shape(2), 5));
  if ((!grey && image.shape(2) > 1 && image.stride(2) != 1) || (image.shape(1) > 1 && image.stride(1) != channels))
    throw nb::value_error("image: the channels of a row must be contiguous");
  const int height = static_cast<int>(image.shape(0)), width = static_cast<int>(image.shape(1));
  const Corners at = origin.value_or(Corners{0, 0, width, height});
  return {image.data(), image.stride(0), std::get<0>(at), std::get<1>(at), width, height,
          std::get<2>(at), std::get<3>(at), static_cast<int>(channels)};
}

nb::object resize(const Image& image, std::tuple<int, int> size, const std::string& filter,
                  const std::string& arithmetic, bool antialias, std::optional<Corners> window,
                  std::optional<Corners> source_part, bool simd) {
  if (image.size() == 0) return nb::none();
  const ImagePart part = part_of(image, source_part);
  const auto [height, width] = size;
  const Box box = window ? box_of(*window) : Box{0, 0, width, height};
  const Filter kind = filter_of(filter);
  const Arithmetic how = arithmetic_of(arithmetic);
  constexpr int most = Resizer::kMaxExtent;
  if (box.x0 < 0 || box.y0 < 0 || box.x0 >= box.x1 || box.y0 >= box.y1 || box.x1 > most || box.y1 > most)
    return nb::none();
  const auto rows = static_cast<std::size_t>(box.height()), columns = static_cast<std::size_t>(box.width());
  const std::size_t row_bytes = columns * static_cast<std::size_t>(part.channels);
  std::unique_ptr<std::uint8_t[]> out;
  bool done = false;
  {
    GilReleased released;
    // One resizer a thread and kind, as in a worker: reuse after every kind of resize is tested along.
    thread_local Resizer vector(true), scalar(false);
    out = std::make_unique_for_overwrite<std::uint8_t[]>(rows * row_bytes);
    Resizer& resizer = simd ? vector : scalar;
    done = resizer.resize(part, width, height, kind, how, antialias, box, out.get(),
                          static_cast<std::ptrdiff_t>(row_bytes));
  }
  if (!done) return nb::none();
  return array_of(std::move(out), rows, columns, static_cast<std::size_t>(part.channels), image.ndim());
}

Corners resize_needed(std::tuple<int, int> full, std::tuple<int, int> size, const std::string& filter,
                      const std::string& arithmetic, bool antialias, Corners window) {
  const Box box = Resizer::needed(std::get<1>(full), std::get<0>(full), std::get<1>(size), std::get<0>(size),
                                  filter_of(filter), arithmetic_of(arithmetic), antialias, box_of(window));
  return {box.x0, box.y0, box.x1, box.y1};
}

}  // namespace

void bind_resize(nb::module_& m) {
  m.def("resize", &resize, nb::arg("image"), nb::arg("size"), nb::arg("filter"), nb::arg("arithmetic"),
        nb::arg("antialias") = true, nb::arg("window") = nb::none(), nb::arg("source_part") = nb::none(),
        nb::arg("simd") = true);
  m.def("resize_needed", &resize_needed, nb::arg("full"), nb::arg("size"), nb::arg("filter"), nb::arg("arithmetic"),
        nb::arg("antialias"), nb::arg("window"));
}

}  // namespace penstock
