// One decoder of JPEG at a time, and the states of rows that it passes.
//
// Threads: any; Python's lock is let go while it works. Memory: the file's bytes are borrowed for the call, pixels are
// numpy's, row states belong to their Python object, which one call at a time may use.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "bind/gil_released.h"
#include "bind/testing/testing.h"
#include "image/jpeg.h"
#include "image/jpeg_trial.h"

namespace nb = nanobind;

namespace penstock {
namespace {

using Corners = std::tuple<int, int, int, int>;

constexpr std::array<std::pair<std::string_view, jpeg::Instructions>, 3> kOwn{
    {{"portable", jpeg::Instructions::portable}, {"avx2", jpeg::Instructions::avx2}, {"avx512", jpeg::Instructions::avx512}}};

JpegDecoder decoder_named(const std::string& name) {
  const jpeg::Kernels& portable = *jpeg::kernels(jpeg::Instructions::portable);
  if (name == "libjpeg") return JpegDecoder(JpegWay::libjpeg, portable);
  for (const auto& [own, instructions] : kOwn)
    if (own == name && jpeg::kernels(instructions) != nullptr)
      return JpegDecoder(JpegWay::own, *jpeg::kernels(instructions));
  throw nb::value_error(("no decoder '" + name + "' here").c_str());
}

nb::list decoders() {
  nb::list names;
  names.append("libjpeg");
  for (const auto& [name, instructions] : kOwn)
    if (jpeg::kernels(instructions) != nullptr) names.append(nb::str(name.data(), name.size()));
  return names;
}

nb::object decode_by(nb::bytes data, const std::string& name, std::optional<Corners> corners, jpeg::RowStates* states) {
  JpegDecoder decoder = decoder_named(name);
  const auto* bytes = static_cast<const std::uint8_t*>(data.data());
  const std::size_t size = data.size();
  std::unique_ptr<std::uint8_t[]> out;
  std::size_t height = 0, width = 0;
  Outcome outcome;
  {
    GilReleased released;
    outcome = decoder.open(bytes, size, 0);
    if (outcome.ok()) {
      Box box{0, 0, decoder.width(), decoder.height()};
      if (corners) box = {std::get<0>(*corners), std::get<1>(*corners), std::get<2>(*corners), std::get<3>(*corners)};
      const std::uint8_t* pixels = nullptr;
      std::ptrdiff_t stride = 0;
      outcome = decoder.decode(box, pixels, stride, states);
      if (outcome.ok()) {
        height = static_cast<std::size_t>(box.height());
        width = static_cast<std::size_t>(box.width());
        out = std::make_unique_for_overwrite<std::uint8_t[]>(height * width * 3);
        for (std::size_t y = 0; y < height; ++y)
          std::memcpy(out.get() + y * width * 3, pixels + static_cast<std::ptrdiff_t>(y) * stride, width * 3);
      }
    }
  }
  if (!outcome.ok()) return nb::cast(outcome.reason);
  std::uint8_t* raw = out.get();
  nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<std::uint8_t*>(p); });
  (void)out.release();  // the capsule's
  const std::size_t shape[3] = {height, width, 3};
  return nb::cast(nb::ndarray<nb::numpy, std::uint8_t>(raw, 3, shape, owner));
}

nb::list known_states(const jpeg::RowStates& states) {
  nb::list rows;
  for (const jpeg::RowState& state : states.known) {
    if (state.bit == jpeg::RowState::kUnknown)
      rows.append(nb::none());
    else
      rows.append(nb::make_tuple(state.bit, state.dc[0], state.dc[1], state.dc[2]));
  }
  return rows;
}

void forget(jpeg::RowStates& states, std::size_t row) {
  if (row >= states.known.size()) throw nb::index_error("that row was never known");
  states.known[row] = {};
}

}  // namespace

void bind_jpeg_pixels(nb::module_& m) {
  nb::class_<jpeg::RowStates>(m, "JpegRowStates")
      .def(nb::init<>())
      .def_prop_ro("known", &known_states)
      .def("forget", &forget, nb::arg("row"));
  m.def("jpeg_decoders", &decoders);
  m.def("decode_jpeg_by", &decode_by, nb::arg("data"), nb::arg("name"), nb::arg("box") = nb::none(),
        nb::arg("states") = nb::none());
  m.def("own_jpeg_serves", &own_jpeg_serves);
}

}  // namespace penstock
