// Python's view of recipes: built from a plain description by src/penstock/recipe/reader.py. Batches are filled by the
// pool; run_recipe() serves the comparison with Pillow and torch in src/penstock/recipe/geometry.py, and tests.
//
// Threads: Python's lock is held. Memory: recipes are shared with the pool by shared_ptr; arrays are copied.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "bind/augmentation.h"
#include "bind/bind.h"
#include "bind/spec.h"
#include "image/recipe.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock {
namespace {

constexpr int kMaxSide = 1 << 20;  // of a requested size, or of one padding

constexpr std::array<std::pair<std::string_view, Filter>, 5> kFilters{{
    {"nearest", Filter::nearest}, {"bilinear", Filter::bilinear}, {"bicubic", Filter::bicubic},
    {"lanczos", Filter::lanczos}, {"nearest-exact", Filter::nearest_exact},
}};
constexpr std::array<std::pair<std::string_view, Arithmetic>, 4> kArithmetics{{
    {"pillow", Arithmetic::pillow}, {"torch_u8", Arithmetic::torch_u8}, {"torch_f32", Arithmetic::torch_f32},
    {"pillow_12", Arithmetic::pillow_12},
}};
constexpr std::array<std::pair<std::string_view, PadMode>, 4> kPadModes{{
    {"constant", PadMode::constant}, {"edge", PadMode::edge}, {"reflect", PadMode::reflect}, {"symmetric", PadMode::symmetric},
}};
constexpr std::array<std::pair<std::string_view, Layout>, 2> kLayouts{{{"chw", Layout::chw}, {"hwc", Layout::hwc}}};

int side(nb::handle value, int least) {
  const auto n = nb::cast<long long>(value);
  if (n < least || n > kMaxSide) throw nb::value_error("a size or padding of a recipe is out of range");
  return static_cast<int>(n);
}

Extent extent(nb::handle pair) { return {side(pair[0], 1), side(pair[1], 1)}; }

Margins margins(nb::handle four) { return {side(four[0], 0), side(four[1], 0), side(four[2], 0), side(four[3], 0)}; }

// Two finite numbers, low <= high, low at least (or above, when `positive`) zero.
std::array<double, 2> range(nb::handle pair, bool positive) {
  const std::array<double, 2> ends{nb::cast<double>(pair[0]), nb::cast<double>(pair[1])};
  if (!std::isfinite(ends[1]) || !(ends[0] <= ends[1]) || !(positive ? ends[0] > 0 : ends[0] >= 0))
    throw nb::value_error("a range of a recipe is not (low, high)");
  return ends;
}

std::array<double, 2> log_range(nb::handle pair) {
  const std::array<double, 2> ends{nb::cast<double>(pair[0]), nb::cast<double>(pair[1])};
  if (!std::isfinite(ends[0]) || !std::isfinite(ends[1]) || !(ends[0] <= ends[1]))
    throw nb::value_error("a range of a recipe is not (low, high)");
  return ends;
}

Sampling sampling(const nb::dict& from) {
  const Sampling how{filter_named(nb::cast<std::string>(from["filter"])),
                     named("arithmetic", nb::cast<std::string>(from["arithmetic"]), kArithmetics),
                     nb::cast<bool>(from["antialias"])};
  if (!Resizer::supported(how.filter, how.arithmetic, how.antialias))
    throw nb::value_error("this interpolation is not reproduced natively");
  return how;
}

PadMode pad_mode(const nb::dict& from) { return named("padding mode", nb::cast<std::string>(from["mode"]), kPadModes); }

int fill_index(const nb::dict& from, std::size_t fills) {
  const int k = side(from["fill"], 0);
  if (static_cast<std::size_t>(k) >= fills) throw nb::value_error("an operation names a fill that is not there");
  return k;
}

Operation operation(const nb::dict& from, std::size_t fills) {
  const auto kind = nb::cast<std::string>(from["op"]);
  if (kind == "RandomResizedCrop")
    return RandomResizedCrop{extent(from["size"]), range(from["scale"], false), range(from["ratio"], true), sampling(from)};
  if (kind == "Resize") {
    Resize resize{{}, side(from["shorter"], 0), side(from["longest"], 0), sampling(from)};
    if (!from["size"].is_none()) resize.size = extent(from["size"]);
    if (resize.size.height == 0 && resize.shorter == 0 && resize.longest == 0) throw nb::value_error("Resize has no size");
    return resize;
  }
  if (kind == "CenterCrop") return CenterCrop{extent(from["size"]), fill_index(from, fills)};
  if (kind == "RandomCrop")
    return RandomCrop{extent(from["size"]), margins(from["padding"]), pad_mode(from), fill_index(from, fills),
                      nb::cast<bool>(from["pad_if_needed"]), nb::cast<bool>(from["pad_once"])};
  if (kind == "RandomFlip") return RandomFlip{nb::cast<bool>(from["horizontal"]), nb::cast<double>(from["p"])};
  if (kind == "Pad") return Pad{margins(from["padding"]), pad_mode(from), fill_index(from, fills)};
  if (kind == "Grayscale") {
    const int channels = side(from["channels"], 1);
    if (channels != 1 && channels != 3) throw nb::value_error("Grayscale gives 1 or 3 channels");
    return Grayscale{channels};
  }
  if (kind == "Augment") return Augment{augmentation_from(nb::cast<nb::dict>(from["augmentation"]))};
  if (kind == "RandomErasing")
    return RandomErasing{nb::cast<double>(from["p"]), range(from["scale"], false), log_range(from["log_ratio"]),
                         fill_index(from, fills)};
  throw nb::value_error(("operation '" + kind + "' is not known").c_str());
}

Fill fill(nb::handle pixel_and_elements, std::size_t element_size) {
  const auto pixel = nb::cast<nb::bytes>(pixel_and_elements[0]);
  const auto elements = nb::cast<nb::bytes>(pixel_and_elements[1]);
  if (pixel.size() > kMaxChannels || elements.size() > kMaxChannels * element_size)
    throw nb::value_error("a fill has too many channels");
  Fill fill;
  std::memcpy(fill.pixel.data(), pixel.c_str(), pixel.size());
  for (std::size_t c = 0; (c + 1) * element_size <= elements.size(); ++c)
    std::memcpy(&fill.element[c], elements.c_str() + c * element_size, element_size);
  return fill;
}

std::shared_ptr<Recipe> make_recipe(int channels, const nb::sequence& operations, const std::string& dtype,
                                    const std::string& layout, const std::optional<nb::bytes>& table,
                                    const nb::sequence& fills) {
  if (channels != 1 && channels != 3) throw nb::value_error("a recipe's source has 1 or 3 channels");
  auto recipe = std::make_shared<Recipe>();
  recipe->channels = channels;
  Output& output = recipe->output;
  output.dtype = dtype_named(dtype);
  if (info(output.dtype).size > sizeof(std::uint64_t)) throw nb::value_error(("a recipe cannot give dtype " + dtype).c_str());
  output.layout = named("layout", layout, kLayouts);
  const std::size_t element_size = info(output.dtype).size;
  for (nb::handle one : fills) output.fills.push_back(fill(one, element_size));
  output.channels = channels;
  for (nb::handle one : operations) {
    recipe->operations.push_back(operation(nb::cast<nb::dict>(one), output.fills.size()));
    if (const auto* grey = std::get_if<Grayscale>(&recipe->operations.back())) output.channels = grey->channels;
  }
  output.copy = !table.has_value();
  if (output.copy && output.dtype != DType::u8) throw nb::value_error("only uint8 is given without a table");
  if (table) {
    if (table->size() != static_cast<std::size_t>(output.channels) * 256 * element_size)
      throw nb::value_error("the table does not hold channels x 256 elements");
    output.table.assign(reinterpret_cast<const std::uint8_t*>(table->c_str()),
                        reinterpret_cast<const std::uint8_t*>(table->c_str()) + table->size());
    find_standard(output);
  }
  return recipe;
}

using Image = nb::ndarray<const std::uint8_t, nb::c_contig, nb::device::cpu>;

nb::tuple run_recipe(const Recipe& recipe, const Image& image, std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample,
                     std::uint64_t position) {
  if (image.ndim() != 2 && image.ndim() != 3) throw nb::value_error("an image is (height, width) or (height, width, channels)");
  if (image.shape(0) > kMaxSide || image.shape(1) > kMaxSide || (image.ndim() == 3 && image.shape(2) > kMaxChannels))
    throw nb::value_error("an image of that size cannot be run");
  const int height = static_cast<int>(image.shape(0)), width = static_cast<int>(image.shape(1));
  const int channels = image.ndim() == 3 ? static_cast<int>(image.shape(2)) : 1;
  MemorySource source(image.data(), height, width, channels);
  RecipeScratch scratch;
  const SampleDraws draws(epoch_key(seed, epoch), sample, position);
  TensorSpec want, got;
  Outcome outcome = run(recipe, source, draws, want, nullptr, got, scratch);  // learns the shape
  std::int64_t size = 0;
  if (outcome.code != Code::mismatch) throw nb::value_error(outcome.reason);
  if (!checked_bytes(got, size)) throw nb::value_error("the result is too large");
  auto row = std::make_unique<std::uint64_t[]>(static_cast<std::size_t>(size) / 8 + 1);
  auto* const bytes = reinterpret_cast<std::uint8_t*>(row.get());
  want = got;
  outcome = run(recipe, source, draws, want, bytes, got, scratch);
  if (!outcome.ok()) throw nb::value_error(outcome.reason);
  return nb::make_tuple(nb::bytes(bytes, static_cast<std::size_t>(size)),
                        nb::make_tuple(got.shape[0], got.shape[1], got.shape[2]));
}

nb::list draw(const Recipe& recipe, std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample, std::uint64_t position,
              int width, int height) {
  RecipeScratch scratch;
  const Outcome outcome = scratch.plan(recipe, {epoch_key(seed, epoch), sample, position}, {height, width});
  if (!outcome.ok()) throw nb::value_error(outcome.reason);
  nb::list result;
  for (std::size_t i = 0; i < recipe.operations.size(); ++i) {
    const Operation& op = recipe.operations[i];
    const Drawn& drawn = scratch.drawn()[i];
    const Box& box = drawn.box;
    if (std::holds_alternative<RandomResizedCrop>(op) || std::holds_alternative<RandomCrop>(op)) {
      result.append(nb::make_tuple(box.y0, box.x0, box.y1 - box.y0, box.x1 - box.x0));
    } else if (std::holds_alternative<RandomFlip>(op)) {
      result.append(drawn.flip);
    } else if (std::holds_alternative<Augment>(op)) {
      result.append(nb::cast(drawn.effects));
    } else if (std::holds_alternative<RandomErasing>(op) && box.width() > 0) {
      result.append(nb::make_tuple(box.y0, box.x0, box.y1 - box.y0, box.x1 - box.x0));
    } else {
      result.append(nb::none());
    }
  }
  return result;
}

nb::tuple box_tuple(const Box& box) { return nb::make_tuple(box.y0, box.x0, box.y1 - box.y0, box.x1 - box.x0); }

bool in_range(Extent size) {
  return size.height > 0 && size.width > 0 && size.height <= kMaxAxis && size.width <= kMaxAxis;
}

nb::object resized_crop_of(SampleDraws& draws, std::array<double, 2> scale, std::array<double, 2> ratio, int height, int width) {
  const bool ranges = 0 <= scale[0] && scale[0] <= scale[1] && scale[1] < HUGE_VAL && 0 < ratio[0] &&
                      ratio[0] <= ratio[1] && ratio[1] < HUGE_VAL;
  if (!ranges || !in_range({height, width})) return nb::none();
  return box_tuple(draw_resized_crop(scale, ratio, draws.next(), {height, width}));
}

nb::object crop_of(SampleDraws& draws, int crop_height, int crop_width, int height, int width) {
  const Extent size{crop_height, crop_width}, padded{height, width};
  if (!in_range(size) || !in_range(padded) || crop_height > height || crop_width > width) return nb::none();
  return box_tuple(draw_crop(size, draws.next(), padded));
}

nb::tuple output_spec(const Recipe& recipe, int width, int height) {
  const Extent size = result_size(recipe, {std::max(height, 0), std::max(width, 0)});
  nb::object shape = nb::none();
  if (size.height > 0) shape = nb::make_tuple(recipe.output.channels, size.height, size.width);
  const std::string_view dtype = info(recipe.output.dtype).torch_name;
  return nb::make_tuple(shape, nb::str(dtype.data(), dtype.size()));
}

}  // namespace

Filter filter_named(const std::string& name) { return named("filter", name, kFilters); }

void bind_image(nb::module_& m) {
  nb::class_<Recipe>(m, "Recipe")
      .def(nb::new_(&make_recipe), "channels"_a, "operations"_a, "dtype"_a, "layout"_a, "table"_a.none(), "fills"_a);
  nb::class_<SampleDraws>(m, "SampleDraws")
      .def("__init__", [](SampleDraws* self, std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample, std::uint64_t position) {
             new (self) SampleDraws(epoch_key(seed, epoch), sample, position);
           }, "seed"_a, "epoch"_a, "sample"_a, "position"_a)
      .def_prop_rw("count", &SampleDraws::count, &SampleDraws::set_count)
      .def("resized_crop", [](SampleDraws& self, double least, double most, double narrow, double wide, int height, int width) {
             return resized_crop_of(self, {least, most}, {narrow, wide}, height, width);
           }, "least"_a, "most"_a, "narrow"_a, "wide"_a, "height"_a, "width"_a)
      .def("crop", &crop_of, "crop_height"_a, "crop_width"_a, "height"_a, "width"_a)
      .def("word", [](SampleDraws& self) { return self.next().word(); })
      .def("flip", [](SampleDraws& self, double p) { return self.next().uniform() < p; }, "p"_a);
  m.def("run_recipe", &run_recipe, "recipe"_a, "image"_a, "seed"_a, "epoch"_a, "sample"_a, "position"_a);
  m.def("draw", &draw, "recipe"_a, "seed"_a, "epoch"_a, "sample"_a, "position"_a, "width"_a, "height"_a);
  m.def("output_spec", &output_spec, "recipe"_a, "width"_a = 0, "height"_a = 0);
}

}  // namespace penstock
