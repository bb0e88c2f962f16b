// Python's view of the axis maps of many samples, for src/penstock/device.
//
// Threads: axis_maps releases Python's lock while it writes. Memory: the arrays are numpy's, and outlive the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

#include "bind/bind.h"
#include "bind/gil_released.h"
#include "image/mapping.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock {
namespace {

using Samples = nb::ndarray<nb::numpy, const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Maps = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

nb::object map_size(const Recipe& recipe, int width, int height) {
  const Extent size = mapped_size(recipe, {height, width});
  if (size.height <= 0) return nb::none();
  return nb::make_tuple(size.height, size.width);
}

void axis_maps(const Recipe& recipe, std::uint64_t seed, std::uint64_t epoch, const Samples& samples,
               const Samples& positions, int width, int height, const Maps& maps) {
  const Extent source{height, width}, result = mapped_size(recipe, source);
  if (result.height <= 0) throw nb::value_error("a recipe of more than crops, pads and flips, or of another size");
  const std::size_t count = samples.shape(0);
  const std::size_t numbers = static_cast<std::size_t>(result.height) + static_cast<std::size_t>(result.width);
  if (positions.shape(0) != count) throw nb::value_error("samples and positions have different lengths");
  if (maps.shape(0) != count || maps.shape(1) != numbers)
    throw nb::value_error("the maps are not samples x (height + width)");
  Outcome outcome = Outcome::success();
  {
    const GilReleased released;
    outcome = write_maps(recipe, source, result, seed, epoch, samples.data(), positions.data(), count, maps.data());
  }
  if (!outcome.ok()) throw nb::value_error(outcome.reason);
}

}  // namespace

void bind_mapping(nb::module_& m) {
  m.def("map_size", &map_size, "recipe"_a, "width"_a, "height"_a);
  m.def("axis_maps", &axis_maps, "recipe"_a, "seed"_a, "epoch"_a, "samples"_a, "positions"_a, "width"_a, "height"_a,
        "maps"_a.noconvert());
}

}  // namespace penstock
