// Ranges of WAV files: numpy's arrays as soundfile gives them, torch's tensors as torchaudio does.
//
// Threads: any number at once, each with its own WavFile; Python's lock is released while a file is read and converted.
// Memory: arrays and tensors are numpy's and torch's; they are written before anybody else has them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bind/arguments.h"
#include "bind/bind.h"
#include "bind/gil_released.h"
#include "bind/own.h"
#include "tensor/wav_file.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock {
namespace {

class WavLoader {
 public:
  WavLoader(nb::object numpy_empty, std::vector<nb::object> dtypes, nb::object torch_empty, nb::object refused)
      : numpy_empty_(std::move(numpy_empty)), dtypes_(std::move(dtypes)), torch_empty_(std::move(torch_empty)),
        refused_(std::move(refused)) {
    if (dtypes_.size() != kWavValueBytes.size()) throw nb::value_error("one dtype for each kind of value");
  }

  // (frames, channels, rate, number of the code)
  nb::object describe(nb::handle path) const {
    const Own<WavFile> own;
    if (const char* reason = open(*own, path, false)) return refused_(reason);
    const WavFormat& format = (*own).format();
    return nb::make_tuple(format.frames, format.channels, format.rate, static_cast<int>(format.code));
  }

  // (array, rate, where its last frame ends in the file), or the number of the file's code where that is not among those
  // of `trusted`, a mask.
  nb::object array(nb::handle source, std::int64_t start, std::int64_t stop, std::int64_t frames, std::size_t value,
                   bool always_2d, unsigned trusted) const {
    const Own<WavFile> own;
    if (const char* reason = open(*own, source, false)) return refused_(reason);
    const WavFormat& format = (*own).format();
    if ((trusted >> static_cast<unsigned>(format.code) & 1) == 0) return nb::int_(static_cast<int>(format.code));
    const auto all = static_cast<std::int64_t>(format.frames);
    const auto clipped = [&](std::int64_t i) { return i < 0 ? std::max<std::int64_t>(i + all, 0) : std::min(i, all); };
    const std::int64_t begin = clipped(start), end = std::max(clipped(stop), begin);
    const std::int64_t count = frames < 0 ? end - begin : std::min(frames, all - begin);
    const bool flat = format.channels == 1 && !always_2d;
    nb::object made = flat ? numpy_empty_(count, dtypes_.at(value))
                           : numpy_empty_(nb::make_tuple(count, format.channels), dtypes_.at(value));
    void* const to = memory_of(made);
    if (const char* reason = read(*own, begin, count, static_cast<WavValue>(value), false, to)) return refused_(reason);
    const std::uint64_t last = format.offset + static_cast<std::uint64_t>(begin + count) * format.frame_bytes();
    return nb::make_tuple(made, format.rate, last);
  }

  // (tensor of shape (channels, frames), rate), or the number of a code that is not trusted.
  nb::object tensor(nb::handle source, std::int64_t start, std::int64_t frames, unsigned trusted, bool plain) const {
    const Own<WavFile> own;
    if (const char* reason = open(*own, source, plain)) return refused_(reason);
    const WavFormat& format = (*own).format();
    if ((trusted >> static_cast<unsigned>(format.code) & 1) == 0) return nb::int_(static_cast<int>(format.code));
    const auto all = static_cast<std::int64_t>(format.frames);
    const std::int64_t begin = std::clamp<std::int64_t>(start, 0, all);
    const std::int64_t count = frames < 0 ? all - begin : std::min(frames, all - begin);
    nb::object made = torch_empty_(nb::make_tuple(format.channels, count));
    void* const to = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(made.attr("data_ptr")()));
    if (const char* reason = read(*own, begin, count, WavValue::f32, true, to)) return refused_(reason);
    return nb::make_tuple(made, format.rate);
  }

 private:
  // source: a path, or the bytes of a file, which the caller keeps.
  static const char* open(WavFile& file, nb::handle source, bool plain) {
    const char* reason = nullptr;
    if (PyBytes_Check(source.ptr())) {
      const auto bytes = nb::borrow<nb::bytes>(source);
      reason = file.open({static_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
      return reason == nullptr && plain ? file.plain() : reason;
    }
    const FilePath path(source);
    if (path.name() == nullptr) return FilePath::kNone;
    const GilReleased released;
    reason = file.open(path.name());
    return reason == nullptr && plain ? file.plain() : reason;
  }
  static const char* read(WavFile& file, std::int64_t begin, std::int64_t count, WavValue value, bool planar, void* to) {
    const GilReleased released;
    return file.read(static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(count), value, planar, to);
  }

  nb::object numpy_empty_;
  std::vector<nb::object> dtypes_;
  nb::object torch_empty_, refused_;
};

}  // namespace

void bind_wav(nb::module_& m) {
  nb::class_<WavLoader>(m, "WavLoader")
      .def(nb::init<nb::object, std::vector<nb::object>, nb::object, nb::object>(), "numpy_empty"_a, "dtypes"_a,
           "torch_empty"_a, "refused"_a)
      .def("describe", &WavLoader::describe, "path"_a)
      .def("array", &WavLoader::array, "source"_a, "start"_a, "stop"_a, "frames"_a, "value"_a, "always_2d"_a, "trusted"_a)
      .def("tensor", &WavLoader::tensor, "source"_a, "start"_a, "frames"_a, "trusted"_a, "plain"_a);
}

}  // namespace penstock
