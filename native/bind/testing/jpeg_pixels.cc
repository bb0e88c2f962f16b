// One decoder of JPEG at a time, and the states of rows that it passes.
//
// Threads: any; Python's lock is released while it works. Memory: the file's bytes are borrowed for the call, pixels are
// numpy's, row states belong to their Python object, which one call at a time may use.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "bind/pixels.h"
#include "bind/testing/testing.h"
#include "image/jpeg.h"

namespace nb = nanobind;

namespace penstock {
namespace {

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

nb::object decode_by(const nb::bytes& data, const std::string& name, const std::optional<Corners>& corners,
                     jpeg::RowStates* states) {
  JpegDecoder decoder = decoder_named(name);
  return decoded(decoder, data, corners, 0, states);
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

using State = std::tuple<std::uint32_t, std::int16_t, std::int16_t, std::int16_t>;  // bit, DC predictions

void suppose(jpeg::RowStates& states, std::size_t row, const State& state) {
  if (row >= states.known.size()) states.known.resize(row + 1);
  states.known[row] = {std::get<0>(state), {std::get<1>(state), std::get<2>(state), std::get<3>(state)}};
}

}  // namespace

void bind_jpeg_pixels(nb::module_& m) {
  nb::class_<jpeg::RowStates>(m, "JpegRowStates")
      .def(nb::init<>())
      .def_prop_ro("known", &known_states)
      .def("forget", &forget, nb::arg("row"))
      .def("suppose", &suppose, nb::arg("row"), nb::arg("state"));
  m.def("jpeg_decoders", &decoders);
  m.def("decode_jpeg_by", &decode_by, nb::arg("data"), nb::arg("name"), nb::arg("box") = nb::none(),
        nb::arg("states") = nb::none());
}

}  // namespace penstock
