// The entropy decoder of JPEG files by itself, and libjpeg's beside it.
//
// Threads: any; Python's lock is let go while they work. Memory: files are borrowed for the call, results are numpy's.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/gil_released.h"
#include "bind/testing/testing.h"
#include "reference/coefficients.h"

namespace nb = nanobind;

namespace penstock {
namespace {

// bit, and the DC predictions of three components.
using State = std::tuple<std::uint32_t, int, int, int>;

constexpr std::uint64_t kMostPixels = std::uint64_t{1} << 26;

std::span<const std::uint8_t> bytes_of(const nb::bytes& data) {
  return {static_cast<const std::uint8_t*>(data.data()), data.size()};
}

jpeg::RowState row_state_of(const State& state) {
  const auto [bit, a, b, c] = state;
  return {bit, {static_cast<std::int16_t>(a), static_cast<std::int16_t>(b), static_cast<std::int16_t>(c)}};
}

State state_of(const jpeg::RowState& state) { return {state.bit, state.dc[0], state.dc[1], state.dc[2]}; }

// Each component as an array of shape (rows of blocks, columns of blocks, 8, 8).
nb::object arrays_of(std::optional<reference::Coefficients> all) {
  if (!all) return nb::none();
  nb::list arrays;
  for (reference::Blocks& blocks : *all) {
    auto values = std::make_unique<std::vector<std::int16_t>>(std::move(blocks.values));
    std::int16_t* const raw = values->data();
    nb::capsule owner(values.get(), [](void* p) noexcept { delete static_cast<std::vector<std::int16_t>*>(p); });
    (void)values.release();  // the capsule's
    const std::size_t shape[4] = {static_cast<std::size_t>(blocks.rows), static_cast<std::size_t>(blocks.columns), 8, 8};
    arrays.append(nb::cast(nb::ndarray<nb::numpy, std::int16_t>(raw, 4, shape, owner)));
  }
  return arrays;
}

nb::object coefficients(const nb::bytes& data, int run, int first_row, std::optional<State> from) {
  std::optional<reference::Coefficients> all;
  const auto bytes = bytes_of(data);
  {
    GilReleased released;
    reference::LibjpegFile file(bytes);
    reference::Way way{run, first_row, std::nullopt};
    if (from) way.from = row_state_of(*from);
    const auto decoder = std::make_unique<jpeg::EntropyDecoder>();
    if (file.open(kMostPixels))
      if (const auto scan = file.scan()) all = reference::decode_scan(*decoder, *scan, way);
  }
  return arrays_of(std::move(all));
}

nb::object coefficients_by_libjpeg(const nb::bytes& data) {
  std::optional<reference::Coefficients> all;
  const auto bytes = bytes_of(data);
  {
    GilReleased released;
    reference::LibjpegFile file(bytes);
    if (file.open(kMostPixels)) all = file.coefficients();
  }
  return arrays_of(std::move(all));
}

std::optional<std::vector<State>> row_states(const nb::bytes& data, int first_row, std::optional<State> from) {
  reference::LibjpegFile file(bytes_of(data));
  if (!file.open(kMostPixels)) return std::nullopt;
  const auto scan = file.scan();
  reference::Way way{0, first_row, std::nullopt};
  if (from) way.from = row_state_of(*from);
  const auto decoder = std::make_unique<jpeg::EntropyDecoder>();
  jpeg::RowStates states;
  if (!scan || !reference::decode_scan(*decoder, *scan, way, &states)) return std::nullopt;
  std::vector<State> all;
  for (const jpeg::RowState& state : states.known) all.push_back(state_of(state));
  return all;
}

nb::bytes stored_row_state(const State& state) {
  std::uint8_t bytes[jpeg::kRowStateBytes];
  jpeg::store_row_state(row_state_of(state), bytes);
  return nb::bytes(reinterpret_cast<const char*>(bytes), sizeof bytes);
}

State loaded_row_state(const nb::bytes& data) {
  if (data.size() != jpeg::kRowStateBytes) throw nb::value_error("a row state has 10 bytes");
  return state_of(jpeg::load_row_state(bytes_of(data).data()));
}

}  // namespace

void bind_jpeg_entropy(nb::module_& m) {
  m.def("jpeg_coefficients", &coefficients, nb::arg("data"), nb::arg("run") = 0, nb::arg("first_row") = 0,
        nb::arg("state") = nb::none());
  m.def("jpeg_coefficients_by_libjpeg", &coefficients_by_libjpeg, nb::arg("data"));
  m.def("jpeg_row_states", &row_states, nb::arg("data"), nb::arg("first_row") = 0, nb::arg("state") = nb::none());
  m.def("store_row_state", &stored_row_state, nb::arg("state"));
  m.def("load_row_state", &loaded_row_state, nb::arg("data"));
}

}  // namespace penstock
