// The fillers for Python, and the shape and element type of their rows.
//
// Threads: as filler.h says. Memory: a filler keeps the Python objects whose memory it reads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "bind/arguments.h"
#include "bind/bind.h"
#include "bind/gil_released.h"
#include "bind/spec.h"
#include "image/image_filler.h"
#include "image/pixel_cache_filler.h"
#include "image/view_filler.h"
#include "tensor/column_filler.h"
#include "tensor/tensor_filler.h"

namespace nb = nanobind;

namespace penstock {
namespace {

// Of numpy or torch: torch's own way to numpy would forbid the tensor to grow later.
using ByteMatrix = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::device::cpu>;
using Images = nb::ndarray<const std::uint8_t, nb::device::cpu>;
using ByteArray = nb::ndarray<nb::numpy, const std::uint8_t, nb::c_contig, nb::device::cpu>;

// A filler that reads an array which Python owns, and keeps it. That keeps its memory too, unless somebody exchanges
// the array's memory, as Tensor.share_memory_() does: it is read only while the caller is in next().
template <class Reader>
class Owning final : public Filler {
 public:
  template <class... Arguments>
  explicit Owning(nb::object array, Arguments&&... arguments)
      : owner_(std::move(array)), reader_(make(owner_, std::forward<Arguments>(arguments)...)) {}

  Outcome fill(const SampleKey& key, const FileTable* paths, const TensorSpec& want, std::uint8_t* row, TensorSpec& got,
               Scratch& scratch) const noexcept override {
    return reader_.fill(key, paths, want, row, got, scratch);
  }
  void prefetch(std::size_t local) const noexcept override { reader_.prefetch(local); }
  [[nodiscard]] std::size_t memory_bytes() const noexcept override { return reader_.memory_bytes(); }
  [[nodiscard]] std::size_t staged_bytes() const noexcept override { return reader_.staged_bytes(); }
  void stage(std::size_t local, std::uint8_t* to) const noexcept override { reader_.stage(local, to); }

 private:
  // Never a converted copy, which nobody would hold.
  template <class Array>
  static Array as_it_is(nb::handle array) {
    Array found;
    if (!nb::try_cast(array, found, false)) throw nb::type_error("not an array of bytes in host memory");
    return found;
  }

  static GatherFiller make(nb::handle array, const TensorSpec& spec) {
    const auto rows = as_it_is<ByteMatrix>(array);
    if (rows.shape(1) != bytes_of(spec)) throw nb::value_error("rows and spec do not agree");
    if (rows.shape(0) > 0 && rows.shape(1) > 1 && rows.stride(1) != 1) throw nb::value_error("rows are not contiguous");
    return {rows.data(), rows.shape(0), rows.stride(0), spec};
  }

  static ImageArrayFiller make(nb::handle array, std::shared_ptr<const Recipe> recipe) {
    const auto images = as_it_is<Images>(array);
    if (images.ndim() != 3 && images.ndim() != 4) throw nb::value_error("images are count x height x width (x channels)");
    for (std::size_t d = 1; d < images.ndim(); ++d)
      if (images.shape(d) > 0xffff) throw nb::value_error("an image too large");
    const auto height = static_cast<std::int64_t>(images.shape(1)), width = static_cast<std::int64_t>(images.shape(2));
    const std::int64_t channels = images.ndim() == 4 ? static_cast<std::int64_t>(images.shape(3)) : 1;
    // The stride of an axis of length 1 is any number.
    const auto strides = [&](std::int64_t y, std::int64_t x, std::int64_t c) {
      const std::array<std::int64_t, 4> expected{height * width * channels, y, x, c};
      for (std::size_t d = 0; d < images.ndim(); ++d)
        if (images.shape(d) > 1 && images.stride(d) != expected[d]) return false;
      return true;
    };
    const bool interleaved = strides(width * channels, channels, 1);
    if (!interleaved && (channels == 1 || !strides(width, 1, width * height)))
      throw nb::value_error("the images' layout is not native");
    const auto layout = interleaved ? PixelLayout::interleaved : PixelLayout::planar;
    return {images.data(), images.shape(0), static_cast<int>(height), static_cast<int>(width),
            static_cast<int>(channels), layout, std::move(recipe)};
  }

  static ColumnFiller make(nb::handle chunks, const std::string& dtype, const TensorSpec& spec) {
    const DType stored = dtype_named(dtype);
    const std::size_t elements = bytes_of(spec) / info(spec.dtype).size;
    std::vector<ColumnChunk> found;
    for (nb::handle given : chunks) {
      const auto rows = as_it_is<ByteArray>(given);
      if (rows.ndim() != 2 || rows.shape(1) != elements * info(stored).size) throw nb::value_error("rows and spec do not agree");
      found.push_back({rows.data(), rows.shape(0)});
    }
    return {std::move(found), elements, stored, spec};
  }

  nb::object owner_;
  Reader reader_;
};

using OwnedColumn = Owning<ColumnFiller>;
using OwnedGather = Owning<GatherFiller>;
using OwnedImages = Owning<ImageArrayFiller>;

bool keep_pixels(const PixelCacheFiller& filler, std::uint64_t sample, const nb::bytes& name, const ByteArray& pixels) {
  if (pixels.ndim() != 2 && pixels.ndim() != 3) throw nb::value_error("pixels are height x width (x channels)");
  for (std::size_t d = 0; d < pixels.ndim(); ++d)
    if (pixels.shape(d) > kMaxAxis) throw nb::value_error("an image too large");
  const GilReleased released;
  const DecodedImage image{pixels.data(), static_cast<int>(pixels.shape(0)), static_cast<int>(pixels.shape(1)),
                           pixels.ndim() == 3 ? static_cast<int>(pixels.shape(2)) : 1};
  return filler.keep(sample, {name.c_str(), name.size()}, image);
}

std::vector<std::shared_ptr<ViewFiller>> view_fillers(const std::shared_ptr<const FileTable>& paths,
                                                      std::vector<std::shared_ptr<const Recipe>> recipes,
                                                      std::uint64_t max_pixels) {
  auto views = std::make_shared<Views>();
  std::uint32_t drawn = 0;
  for (const auto& recipe : recipes) {
    views->first.push_back(drawn);
    drawn += drawing_operations(*recipe);
  }
  views->recipes = std::move(recipes);
  std::vector<std::shared_ptr<ViewFiller>> fillers;
  for (std::size_t number = 0; number < views->recipes.size(); ++number)
    fillers.push_back(std::make_shared<ViewFiller>(paths, views, number, max_pixels));
  return fillers;
}

}  // namespace

void bind_fillers(nb::module_& m) {
  m.attr("MAX_DIMS") = kMaxDims;
  nb::list dtypes;
  for (const DTypeInfo& dtype : kDTypes) dtypes.append(nb::str(dtype.torch_name.data(), dtype.torch_name.size()));
  m.attr("DTYPES") = nb::tuple(dtypes);
  nb::class_<TensorSpec>(m, "Spec")
      .def("__init__", [](TensorSpec* self, const std::string& dtype,
                          const std::vector<std::int64_t>& shape) { new (self) TensorSpec(make_spec(dtype, shape)); },
           nb::arg("dtype"), nb::arg("shape"))
      .def_prop_ro("dtype", [](const TensorSpec& s) { return nb::str(info(s.dtype).torch_name.data()); })
      .def_prop_ro("shape", &shape_of)
      .def_prop_ro("nbytes", &bytes_of);
  m.def("address", [](const nb::ndarray<nb::numpy, nb::ro, nb::device::cpu>& array) {
    return reinterpret_cast<std::uintptr_t>(array.data());
  }, nb::arg("array").noconvert());
  nb::class_<Filler>(m, "Filler")
      .def("cached", [](const Filler& filler, std::shared_ptr<SampleCache> cache) { return filler.cached(std::move(cache)); },
           nb::arg("cache"));
  nb::class_<OwnedGather, Filler>(m, "GatherFiller")
      .def(nb::init<nb::object, const TensorSpec&>(), nb::arg("rows"), nb::arg("spec"));
  nb::class_<OwnedColumn, Filler>(m, "ColumnFiller")
      .def(nb::init<nb::list, const std::string&, const TensorSpec&>(), nb::arg("chunks"), nb::arg("dtype"), nb::arg("spec"));
  nb::class_<OwnedImages, Filler>(m, "ImageArrayFiller")
      .def(nb::init<nb::object, std::shared_ptr<const Recipe>>(), nb::arg("images"), nb::arg("recipe"));
  nb::class_<TensorFileFiller, Filler>(m, "TensorFileFiller")
      .def(nb::init<std::shared_ptr<const FileTable>>(), nb::arg("paths"));
  nb::class_<ImageFileFiller, Filler>(m, "ImageFileFiller")
      .def(nb::init<std::shared_ptr<const FileTable>, std::shared_ptr<const Recipe>, std::uint64_t>(),
           nb::arg("paths").none(), nb::arg("recipe"), nb::arg("max_pixels"))
      .def("indexed", [](const ImageFileFiller& filler, std::shared_ptr<JpegIndex> index) {
             return filler.indexed(std::move(index));
           }, nb::arg("index"))
      .def("keeping_pixels",
           [](const ImageFileFiller& filler, std::shared_ptr<SampleCache> cache, std::size_t operations) {
             return filler.keeping_pixels(std::move(cache), operations);
           },
           nb::arg("cache"), nb::arg("operations"));
  nb::class_<ViewFiller, Filler>(m, "ViewFiller");
  m.def("view_fillers", &view_fillers, nb::arg("paths").none(), nb::arg("recipes"), nb::arg("max_pixels"));
  nb::class_<PixelCacheFiller, Filler>(m, "PixelCacheFiller")
      .def("keep", &keep_pixels, nb::arg("sample"), nb::arg("name"), nb::arg("pixels"));
  nb::class_<PixelFileFiller, Filler>(m, "PixelFileFiller")
      .def(nb::init<std::shared_ptr<const FileTable>, std::shared_ptr<const Recipe>>(), nb::arg("paths"), nb::arg("recipe"));
}

}  // namespace penstock
