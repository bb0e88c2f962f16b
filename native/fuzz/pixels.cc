#include "fuzz/pixels.h"

#include <cstring>
#include <initializer_list>
#include <random>

#include "jpeg/kernels.h"

namespace penstock::fuzz {
namespace {

constexpr std::uint64_t kMostPixels = 1 << 14;

// Pixels of a decoder's; valid until it decodes again.
struct Pixels {
  const std::uint8_t* first = nullptr;
  std::ptrdiff_t stride = 0;
};

bool decode(JpegDecoder& decoder, std::span<const std::uint8_t> file, Box box, Pixels& pixels, jpeg::RowStates* states) {
  return decoder.open(file.data(), file.size(), kMostPixels).ok() &&
         decoder.decode(box, pixels.first, pixels.stride, states).ok();
}

bool same(Box box, const Pixels& a, const Pixels& b) {
  for (int y = 0; y < box.height(); ++y)
    if (std::memcmp(a.first + y * a.stride, b.first + y * b.stride, static_cast<std::size_t>(box.width()) * 3) != 0)
      return false;
  return true;
}

}  // namespace

PixelComparison::PixelComparison() : libjpeg_(JpegWay::libjpeg, *jpeg::kernels(jpeg::Instructions::portable)) {
  for (const auto instructions : {jpeg::Instructions::portable, jpeg::Instructions::avx2, jpeg::Instructions::avx512})
    if (const jpeg::Kernels* const kernels = jpeg::kernels(instructions))
      own_.push_back(std::make_unique<JpegDecoder>(JpegWay::own, *kernels));
}

const char* PixelComparison::fault(std::span<const std::uint8_t> file, std::uint64_t number) {
  std::mt19937_64 random(number);
  JpegDecoder& own = *own_[random() % own_.size()];
  if (!own.open(file.data(), file.size(), kMostPixels).ok()) return nullptr;
  const Box whole{0, 0, own.width(), own.height()};
  const auto within = [&](int first, int end) { return first + static_cast<int>(random() % static_cast<unsigned>(end - first)); };
  const auto any_box = [&] {
    const int x0 = within(0, whole.x1), y0 = within(0, whole.y1);
    return Box{x0, y0, within(x0, whole.x1) + 1, within(y0, whole.y1) + 1};
  };
  // The states that one box leaves serve the next one. Any state is safe, though the pixels are then others.
  jpeg::RowStates states, any_states;
  any_states.known.resize(static_cast<std::size_t>(own.mcu_rows()));
  for (jpeg::RowState& state : any_states.known) state.bit = static_cast<std::uint32_t>(random() % (8 * file.size() + 64));
  Pixels unused;
  static_cast<void>(decode(own, file, any_box(), unused, &any_states));
  const bool with_states = random() % 4 != 0;
  for (const Box box : {any_box(), whole, any_box()}) {
    Pixels ours, reference;
    if (!decode(own, file, box, ours, with_states ? &states : nullptr)) continue;
    decoded_ += box.y1 == whole.y1 ? 1 : 0;
    if (!decode(libjpeg_, file, box, reference, nullptr)) {
      // Rows below a box need not be sound.
      if (box.y1 == whole.y1) return "libjpeg warns or fails where pixels were decoded";
      continue;
    }
    if (!same(box, ours, reference)) return "libjpeg gives other pixels";
    ++equal_;
  }
  return nullptr;
}

}  // namespace penstock::fuzz
