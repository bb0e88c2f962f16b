// One sample by itself, in the calling thread: the bytes of its file, or an image transformed after the user's code
// has read it.
//
// Threads: any number at once; each call has its own working memory, and Python's lock is released while it works.
// Memory: the bytes of a file that is read are the array's; elements are written where the caller wants them; the memory of
// a Pillow image is borrowed while its Arrow capsules live, and the bytes of a file for the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrow/interface.h"
#include "bind/arguments.h"
#include "bind/augmentation.h"
#include "bind/bind.h"
#include "bind/gil_released.h"
#include "bind/own.h"
#include "bind/pixels.h"
#include "bind/program.h"
#include "files/cache_tier.h"
#include "files/path_table.h"
#include "image/image_filler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock {
namespace {

// What is left to Python is read there again: its error, if any, says more than this.
nb::object reason(const Outcome& outcome) {
  const bool file = outcome.code == Code::io || outcome.code == Code::escapes;
  return nb::cast(file ? "the file cannot be opened or read" : outcome.reason);
}

// Reads all of a file of so many bytes, and of one that is shorter by now what there is.
Outcome read_whole(SampleFile& file, std::uint64_t size, std::unique_ptr<std::uint8_t[]>& bytes, std::uint64_t& done) {
  bytes.reset(new (std::nothrow) std::uint8_t[size + 1]);
  if (!bytes) return Outcome::to_python("out of memory");
  if (!file.read(bytes.get(), size + 1, 0, done)) return file.failure();
  return done > size ? Outcome::to_python("the file became longer while it was read") : Outcome::success();
}

using FileBytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

nb::object read_file(const PyProgram& python, std::size_t source, std::size_t local, const std::optional<nb::bytes>& name,
                     std::uint64_t most) {
  const Program& program = *python.program();
  if (source >= program.sources.size() || program.fields == 0) throw nb::index_error("no such source");
  std::optional<PathTable> table;
  if (name) {
    std::string text = text_of(*name);
    if (text.find('\0') != std::string::npos) return nb::cast("its path holds a NUL character");
    text.push_back('\0');
    table.emplace(std::string(), std::move(text), std::string(), false);
  }
  std::unique_ptr<std::uint8_t[]> bytes;
  std::uint64_t done = 0;
  Outcome outcome;
  {
    const GilReleased released;
    const FileLocation where = program.sources[source].front()->locate({local, 0, 0, {}, 0}, table ? &*table : nullptr);
    SampleFile file;
    std::vector<std::uint8_t> cached;  // which the file borrows
    if (where.table == nullptr || where.index >= where.table->size()) {
      outcome = Outcome::io_error(ERANGE, "index");
    } else if (where.cache == nullptr || !where.keeps_file) {
      outcome = where.table->open(where.index, file);
    } else {
      outcome = where.cache->open(where.sample, *where.table, where.index, cached, file);
    }
    std::uint64_t size = 0;
    if (outcome.ok()) outcome = file.size(size);
    if (outcome.ok() && (size == 0 || size > most)) outcome = Outcome::to_python("an empty file, or a huge one");
    if (outcome.ok()) outcome = read_whole(file, size, bytes, done);
  }
  if (outcome.ok()) {
    const nb::capsule owner(bytes.get(), [](void* memory) noexcept { delete[] static_cast<std::uint8_t*>(memory); });
    std::uint8_t* const content = bytes.release();
    const std::size_t shape[1] = {done};
    return nb::cast(FileBytes(content, 1, shape, owner));
  }
  if (outcome.code == Code::io) return nb::cast(std::string("cannot be read: ") + std::strerror(outcome.error));
  return nb::cast(outcome.code == Code::escapes ? "leads out of its root folder" : outcome.reason);
}

// The bytes that a capsule pair of Pillow's lends: an image's memory, one pixel after another, a byte each (L), or four of
// which three are used (RGB). Null where they are not `count` pixels of so many channels.
const std::uint8_t* lent_pixels(const nb::capsule& schema, const nb::capsule& array, int channels, std::int64_t count) {
  const auto* form = static_cast<const ArrowSchema*>(schema.data("arrow_schema"));
  const auto* held = static_cast<const ArrowArray*>(array.data("arrow_array"));
  const char* const wanted = channels == 1 ? "C" : "+w:4";
  if (form->format == nullptr || std::strcmp(form->format, wanted) != 0 || held->length != count || held->offset != 0)
    return nullptr;
  if (channels != 1) {
    if (held->n_children != 1 || form->n_children != 1 || std::strcmp(form->children[0]->format, "C") != 0) return nullptr;
    held = held->children[0];
    if (held->length != count * MemorySource::kSpacing || held->offset != 0) return nullptr;
  }
  return held->n_buffers == 2 ? static_cast<const std::uint8_t*>(held->buffers[1]) : nullptr;
}

// What was drawn, from its description: (top, left, height, width), whether to flip, or None.
std::vector<Drawn> drawn_from(const Recipe& recipe, const nb::sequence& draws) {
  std::vector<Drawn> all;
  for (nb::handle one : draws) {
    if (all.size() == recipe.operations.size()) throw nb::value_error("more draws than operations");
    const Operation& operation = recipe.operations[all.size()];
    Drawn& drawn = all.emplace_back();
    if (std::holds_alternative<RandomFlip>(operation)) {
      drawn.flip = nb::cast<bool>(one);
    } else if (std::holds_alternative<Augment>(operation)) {
      drawn.effects = nb::cast<const Effects&>(one);
    } else if (std::holds_alternative<RandomResizedCrop>(operation) || std::holds_alternative<RandomCrop>(operation) ||
               (std::holds_alternative<RandomErasing>(operation) && !one.is_none())) {
      const int top = nb::cast<int>(one[0]), left = nb::cast<int>(one[1]);
      const int height = nb::cast<int>(one[2]), width = nb::cast<int>(one[3]);
      if (top < 0 || left < 0 || height < 0 || width < 0 || top > kMaxAxis - height || left > kMaxAxis - width)
        throw nb::value_error("a crop that was drawn is out of range");
      drawn.box = {left, top, left + width, top + height};
      if (nb::len(one) > 4) drawn.filter = filter_named(nb::cast<std::string>(one[4]));
    }
  }
  return all;
}

// Runs a recipe with these draws into `out`: `work` is given a function that runs it on a source of pixels.
template <class Work>
nb::object transformed(const Recipe& recipe, const nb::sequence& draws,
                       const nb::ndarray<nb::c_contig, nb::device::cpu>& out, Work&& work) {
  const std::vector<Drawn> given = drawn_from(recipe, draws);
  const std::size_t room = out.nbytes();
  auto* const row = static_cast<std::uint8_t*>(out.data());
  Outcome outcome;
  bool padded = false;
  const Own<Scratch> own;
  {
    const GilReleased released;
    auto& scratch = (*own).part<ImageScratch>();
    outcome = work(scratch, [&](PixelSource& source) { return run(recipe, source, given, room, row, scratch.recipe); });
    padded = outcome.ok() && scratch.recipe.padded();
  }
  return outcome.ok() ? nb::cast(padded) : reason(outcome);
}

nb::object transform_image(const Recipe& recipe, const nb::capsule& schema, const nb::capsule& array, int width, int height,
                           const nb::sequence& draws, const nb::ndarray<nb::c_contig, nb::device::cpu>& out) {
  if (width <= 0 || height <= 0 || width > kMaxAxis || height > kMaxAxis) return nb::cast("an image of that size");
  const std::uint8_t* const pixels = lent_pixels(schema, array, recipe.channels, std::int64_t{width} * height);
  if (pixels == nullptr) return nb::cast("its pixels do not lie as expected");
  return transformed(recipe, draws, out, [&](ImageScratch&, auto&& run_on) {
    MemorySource source = recipe.channels == 1 ? MemorySource(pixels, height, width, 1)
                                               : MemorySource::spaced_rgb(pixels, height, width);
    return run_on(source);
  });
}

nb::object transform_tensor(const Recipe& recipe, const nb::ndarray<const std::uint8_t, nb::ndim<3>, nb::device::cpu>& image,
                            const nb::sequence& draws, const nb::ndarray<nb::c_contig, nb::device::cpu>& out) {
  const std::int64_t channels = recipe.channels, height = static_cast<std::int64_t>(image.shape(1)),
                     width = static_cast<std::int64_t>(image.shape(2));
  const auto lies = [&](std::int64_t channel, std::int64_t row, std::int64_t column) {
    return image.stride(0) == channel && image.stride(1) == row && image.stride(2) == column;
  };
  if (height <= 0 || width <= 0 || height > kMaxAxis || width > kMaxAxis) return nb::cast("an image of that size");
  const bool interleaved = lies(1, width * channels, channels);
  if (static_cast<std::int64_t>(image.shape(0)) != channels || channels == 1 ||
      !(interleaved || lies(height * width, width, 1)))
    return nb::cast("its pixels do not lie as expected");
  const std::uint8_t* const pixels = image.data();
  const int rows = static_cast<int>(height), columns = static_cast<int>(width);
  return transformed(recipe, draws, out, [&](ImageScratch&, auto&& run_on) {
    MemorySource source = interleaved ? MemorySource(pixels, rows, columns, recipe.channels)
                                      : MemorySource::planar(pixels, rows, columns, recipe.channels);
    return run_on(source);
  });
}

nb::object decode_tensor(const nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& data,
                         const nb::callable& room, bool grey, bool rgb) {
  const Own<Scratch> own;
  JpegDecoder& jpeg = (*own).part<ImageScratch>().jpeg;
  Outcome outcome;
  {
    const GilReleased released;
    outcome = jpeg.open(data.data(), data.size(), 0);
  }
  if (!outcome.ok()) return reason(outcome);
  if (grey && jpeg.components() != 1) return nb::cast("JPEG: the grey of a colour image");
  const std::size_t channels = jpeg.components() == 1 && !rgb ? 1 : 3;
  const auto width = static_cast<std::size_t>(jpeg.width()), height = static_cast<std::size_t>(jpeg.height());
  nb::object made = room(height, width, channels);
  const auto out = nb::cast<nb::ndarray<std::uint8_t, nb::shape<-1, -1, -1>, nb::c_contig, nb::device::cpu>>(made);
  if (out.shape(0) != height || out.shape(1) != width || out.shape(2) != channels) throw nb::value_error("room of another shape");
  {
    const GilReleased released;
    const std::uint8_t* pixels = nullptr;
    std::ptrdiff_t stride = 0;
    outcome = jpeg.decode({0, 0, jpeg.width(), jpeg.height()}, pixels, stride);
    std::uint8_t* row = out.data();
    for (std::size_t y = 0; outcome.ok() && y < height; ++y, pixels += stride, row += width * channels) {
      if (channels == 3) {
        std::memcpy(row, pixels, width * channels);
      } else {
        for (std::size_t x = 0; x < width; ++x) row[x] = pixels[3 * x];
      }
    }
  }
  return outcome.ok() ? made : reason(outcome);
}

nb::object decode_jpeg(const nb::bytes& data, const std::optional<Corners>& box, std::uint64_t max_pixels) {
  const Own<Scratch> own;
  return decoded((*own).part<ImageScratch>().jpeg, data, box, max_pixels);
}

nb::object certify_jpeg(const nb::bytes& data) {
  const auto* const bytes = static_cast<const std::uint8_t*>(data.data());
  const std::size_t size = data.size();
  Outcome outcome;
  int width = 0, height = 0, components = 0;
  std::size_t end = 0;
  const Own<Scratch> own;
  {
    const GilReleased released;
    JpegDecoder& jpeg = (*own).part<ImageScratch>().jpeg;
    outcome = jpeg.open(bytes, size, 0);
    if (outcome.ok()) {
      width = jpeg.width();
      height = jpeg.height();
      components = jpeg.components();
      outcome = jpeg.certify(end);
    }
  }
  return outcome.ok() ? nb::make_tuple(width, height, components, end) : reason(outcome);
}

nb::object transform_jpeg(const Recipe& recipe, const nb::bytes& data, const nb::sequence& draws,
                          const nb::ndarray<nb::c_contig, nb::device::cpu>& out) {
  if (recipe.channels != 3) return nb::cast("the image has another number of channels");
  const auto* const bytes = static_cast<const std::uint8_t*>(data.data());
  const std::size_t size = data.size();
  return transformed(recipe, draws, out, [&](ImageScratch& scratch, auto&& run_on) {
    const Outcome opened = scratch.jpeg.open(bytes, size, 0);
    if (!opened.ok()) return opened;
    JpegSource source(scratch.jpeg, scratch.clock);
    return run_on(source);
  });
}

nb::object sizes_before(const Recipe& recipe, int width, int height) {
  nb::list all;
  for (const Extent& size : sizes(recipe, {height, width})) all.append(nb::make_tuple(size.height, size.width));
  return all;
}

}  // namespace

void bind_sample(nb::module_& m) {
  m.def("read_file", &read_file, "program"_a, "source"_a, "local"_a, "name"_a.none(), "most"_a);
  m.def("transform_image", &transform_image, "recipe"_a, "schema"_a, "array"_a, "width"_a, "height"_a, "draws"_a, "out"_a);
  m.def("transform_tensor", &transform_tensor, "recipe"_a, "image"_a, "draws"_a, "out"_a);
  m.def("decode_tensor", &decode_tensor, "data"_a, "room"_a, "grey"_a, "rgb"_a);
  m.def("decode_jpeg", &decode_jpeg, "data"_a, "box"_a = nb::none(), "max_pixels"_a = 0);
  m.def("certify_jpeg", &certify_jpeg, "data"_a);
  m.def("transform_jpeg", &transform_jpeg, "recipe"_a, "data"_a, "draws"_a, "out"_a);
  m.def("sizes", &sizes_before, "recipe"_a, "width"_a, "height"_a);
}

}  // namespace penstock
