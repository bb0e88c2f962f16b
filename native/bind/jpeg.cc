// The JPEG decoder by itself, for the comparison with Pillow in src/penstock/recipe/jpeg_pixels.py, tests and fuzzing;
// the loader's workers use it without Python.
//
// Threads: any; Python's lock is let go while it works. Memory: the file's bytes are borrowed for the call, pixels are
// numpy's.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "bind/gil_released.h"
#include "image/jpeg.h"

namespace nb = nanobind;

namespace penstock {
namespace {

// Decoders between calls, as workers keep theirs: reuse after every kind of failure is tested along. A decoder is used
// by one call at a time and may serve another thread next.
class Decoders {
 public:
  std::unique_ptr<JpegDecoder> take() {
    std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<JpegDecoder>();
    std::unique_ptr<JpegDecoder> decoder = std::move(idle_.back());
    idle_.pop_back();
    return decoder;
  }
  void give_back(std::unique_ptr<JpegDecoder> decoder) {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(decoder));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<JpegDecoder>> idle_;
};

using Corners = std::tuple<int, int, int, int>;

nb::object decode_jpeg(nb::bytes data, std::optional<Corners> corners, std::uint64_t max_pixels) {
  const auto* bytes = static_cast<const std::uint8_t*>(data.data());
  const std::size_t size = data.size();
  std::unique_ptr<std::uint8_t[]> out;
  std::size_t height = 0, width = 0;
  Outcome outcome;
  {
    GilReleased released;
    static Decoders decoders;
    std::unique_ptr<JpegDecoder> decoder = decoders.take();
    outcome = decoder->open(bytes, size, max_pixels);
    if (outcome.ok()) {
      Box box{0, 0, decoder->width(), decoder->height()};
      if (corners) box = {std::get<0>(*corners), std::get<1>(*corners), std::get<2>(*corners), std::get<3>(*corners)};
      const std::uint8_t* pixels = nullptr;
      std::ptrdiff_t stride = 0;
      outcome = decoder->decode(box, pixels, stride);
      if (outcome.ok()) {
        height = static_cast<std::size_t>(box.height());
        width = static_cast<std::size_t>(box.width());
        out = std::make_unique_for_overwrite<std::uint8_t[]>(height * width * 3);
        for (std::size_t y = 0; y < height; ++y)
          std::memcpy(out.get() + y * width * 3, pixels + static_cast<std::ptrdiff_t>(y) * stride, width * 3);
      }
    }
    decoders.give_back(std::move(decoder));
  }
  if (!outcome.ok()) return nb::cast(outcome.reason);
  std::uint8_t* raw = out.get();
  nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<std::uint8_t*>(p); });
  (void)out.release();  // the capsule's
  const std::size_t shape[3] = {height, width, 3};
  return nb::cast(nb::ndarray<nb::numpy, std::uint8_t>(raw, 3, shape, owner));
}

}  // namespace

void bind_jpeg(nb::module_& m) {
  m.def("decode_jpeg", &decode_jpeg, nb::arg("data"), nb::arg("box") = nb::none(), nb::arg("max_pixels") = 0,
        "Decode a JPEG, or the box (x0, y0, x1, y1) of it.\n\n"
        "Returns uint8 of shape (height, width, 3), or the reason (str) why Pillow has to decode it.\n"
        "max_pixels: more pixels than this are left to Pillow; 0 is no limit.");
}

}  // namespace penstock
