// cv2.imread and cv2.imdecode: the pixels of a sequential JPEG file, in numpy's memory.
//
// Threads: any number at once, each with its own PixelReader; Python's lock is released while a file is read and
// decoded. Memory: arrays are numpy's; they are written before anybody else has them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>
#include <span>
#include <string>

#include "bind/arguments.h"
#include "bind/bind.h"
#include "bind/gil_released.h"
#include "bind/own.h"
#include "image/jpeg.h"
#include "image/jpeg_segments.h"
#include "image/pixel_rows.h"
#include "jpeg/kernels.h"
#include "tensor/file_block.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock {
namespace {

constexpr std::size_t kKept = 64u << 20;
constexpr int kMaxPixels = 1 << 28;  // of the 2^30 that OpenCV takes

// What libjpeg decodes OpenCV decodes by a libjpeg as fast.
struct PixelReader {
  Block file;
  JpegDecoder jpeg{JpegWay::own, *jpeg::kernels(jpeg::Instructions::best)};

  void trim() noexcept {
    if (held() <= kKept) return;
    file = Block();
    jpeg.release();
  }
  [[nodiscard]] std::size_t held() const { return jpeg.held() + file.room(); }
};

// Where the bytes of a file are, or why not.
struct Found {
  std::span<const std::uint8_t> bytes;
  const char* reason = nullptr;
};

class OpenCvLoader {
 public:
  OpenCvLoader(nb::object empty, nb::object refused) : empty_(std::move(empty)), refused_(std::move(refused)) {}

  nb::object path(nb::handle path, int channels, bool rgb) const {
    Py_ssize_t length = 0;
    const char* const name = PyUnicode_AsUTF8AndSize(path.ptr(), &length);  // as OpenCV has it, whatever the locale
    if (name == nullptr) PyErr_Clear();
    if (name == nullptr || std::strlen(name) != static_cast<std::size_t>(length)) return refused_("a path that no file can have");
    return make(channels, rgb, [name](PixelReader& reader) -> Found {
      const UniqueFd file = open_for_loading(name);
      if (!file) return {{}, "the file cannot be opened"};
      std::size_t size = 0;
      if (const char* const reason = read_whole(file.get(), 0, reader.file, size)) return {{}, reason};
      return {{reader.file.bytes(), size}};
    });
  }
  nb::object bytes(const nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& bytes, int channels,
                   bool rgb) const {
    return make(channels, rgb, [&](PixelReader&) -> Found { return {{bytes.data(), bytes.size()}}; });
  }

 private:
  // A refusal, or (the array, the file's application segments).
  template <class Find>
  nb::object make(int channels, bool rgb, const Find& find) const {
    if (jpeg::kernels(jpeg::Instructions::best) == &jpeg::kPortableKernels)
      return refused_("a processor without vectors of 256 bits");
    const Own<PixelReader> own;
    PixelReader& reader = *own;
    Found file;
    Outcome outcome;
    {
      const GilReleased released;
      file = find(reader);
      if (file.reason == nullptr) outcome = reader.jpeg.open(file.bytes.data(), file.bytes.size(), 0);
    }
    if (file.reason != nullptr || !outcome.ok()) return refused_(file.reason != nullptr ? file.reason : outcome.reason);
    const int width = reader.jpeg.width(), height = reader.jpeg.height(), components = reader.jpeg.components();
    if (channels == 0) channels = components;
    if (height > kMaxPixels / width) return refused_("an image of that size");
    const bool luma = channels < components;
    const PixelBytes what = channels == 1 ? PixelBytes::first : rgb || components == 1 ? PixelBytes::rgb : PixelBytes::bgr;
    const nb::object array =
        channels == 1 ? empty_(nb::make_tuple(height, width)) : empty_(nb::make_tuple(height, width, channels));
    std::uint8_t* const out = memory_of(array);
    {
      const GilReleased released;
      const std::uint8_t* pixels = nullptr;
      std::ptrdiff_t stride = 0;
      outcome = reader.jpeg.decode({0, 0, width, height}, pixels, stride, nullptr, luma);
      if (outcome.ok()) copy_rows(pixels, stride, height, width, what, out);
    }
    if (!outcome.ok()) return refused_("JPEG: progressive, in several scans, unusual or damaged");
    const std::string segments = application_segments(file.bytes.data(), file.bytes.size());
    return nb::make_tuple(array, nb::bytes(segments.data(), segments.size()));
  }

  nb::object empty_;
  nb::object refused_;
};

}  // namespace

void bind_opencv_load(nb::module_& m) {
  nb::class_<OpenCvLoader>(m, "OpenCvLoader")
      .def(nb::init<nb::object, nb::object>(), "empty"_a, "refused"_a)
      .def("path", &OpenCvLoader::path, "path"_a, "channels"_a, "rgb"_a)
      .def("bytes", &OpenCvLoader::bytes, "bytes"_a, "channels"_a, "rgb"_a);
}

}  // namespace penstock
