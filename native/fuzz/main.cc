// penstock_fuzz [--seed N] [--count N] FILE...
//
// Changes JPEG files at random and decodes them by native/jpeg/ and by libjpeg. Each change is a function of the seed and its
// number. What must hold: where our decoder succeeds, libjpeg gives no warning and the same pixels, whatever part of the image is
// decoded and whatever is known of its rows. The first file for which that does not hold, or that a sanitizer reports, is written
// to fuzz-SEED-NUMBER.jpg, and the exit status is not 0.
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/mutation.h"
#include "image/jpeg.h"
#include "jpeg/kernels.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace penstock::fuzz {
namespace {

// The file that is being decoded, where a sanitizer's callback finds it.
struct Current {
  std::uint64_t seed = 0, number = 0;
  Bytes file;

  void write() const {
    const std::string name = "fuzz-" + std::to_string(seed) + "-" + std::to_string(number) + ".jpg";
    std::ofstream(name, std::ios::binary).write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
    std::fprintf(stderr, "penstock_fuzz: the file is in %s\n", name.c_str());
  }
};
Current current;

std::uint64_t number_of(const char* text) {
  std::uint64_t value = 0;
  const char* const end = text + std::strlen(text);
  if (const auto [rest, error] = std::from_chars(text, end, value); error != std::errc{} || rest != end) {
    std::fprintf(stderr, "penstock_fuzz: %s is no number\n", text);
    std::exit(2);
  }
  return value;
}

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

// The pixels of a JPEG by native/jpeg/, in each kind of instructions that this processor has, against libjpeg's.
class PixelComparison {
 public:
  PixelComparison();

  // What is wrong with how a file is decoded; nullptr: nothing. The number chooses the instructions and the boxes.
  [[nodiscard]] const char* fault(std::span<const std::uint8_t> file, std::uint64_t number);
  // Boxes that were decoded to the end of the image, and boxes that were equal.
  [[nodiscard]] std::uint64_t decoded() const { return decoded_; }
  [[nodiscard]] std::uint64_t equal() const { return equal_; }

 private:
  std::vector<std::unique_ptr<JpegDecoder>> own_;
  JpegDecoder libjpeg_;
  std::uint64_t decoded_ = 0, equal_ = 0;
};

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

void report(std::uint64_t files, const PixelComparison& pixels) {
  using Number = unsigned long long;
  std::printf("%llu files, %llu decoded, %llu boxes of pixels equal\n", Number{files}, Number{pixels.decoded()},
              Number{pixels.equal()});
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  std::uint64_t count = UINT64_MAX;
  std::vector<Bytes> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option.starts_with("--") && i + 1 < argc) {
      const std::uint64_t value = number_of(argv[++i]);
      if (option == "--seed") current.seed = value;
      else if (option == "--count") count = value;
      else return std::fprintf(stderr, "penstock_fuzz: unknown option %s\n", argv[i - 1]), 2;
      continue;
    }
    std::ifstream file(argv[i], std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (corpus.back().size() < 4) return std::fprintf(stderr, "penstock_fuzz: cannot read %s\n", argv[i]), 2;
  }
  if (corpus.empty()) return std::fprintf(stderr, "penstock_fuzz: needs JPEG files\n"), 2;

  PixelComparison pixels;
  std::uint64_t i = 0;
  for (; i < count; ++i) {
    current.number = i;
    // The files of a corpus themselves come first.
    current.file = current.number < corpus.size() ? corpus[current.number]
                                                  : Mutator(corpus, current.seed << 40 ^ current.number).next();
    // Separate memory, so that a sanitizer knows where it ends.
    const Bytes exact(current.file.begin(), current.file.end());
    if (const char* const wrong = pixels.fault(exact, current.number)) {
      std::fprintf(stderr, "penstock_fuzz: %s\n", wrong);
      current.write();
      return 1;
    }
    if (i % 1'000'000 == 999'999) report(i + 1, pixels);
  }
  report(i, pixels);
  return 0;
}

}  // namespace
}  // namespace penstock::fuzz

int main(int argc, char** argv) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback([] { penstock::fuzz::current.write(); });
#endif
  return penstock::fuzz::run(argc, argv);
}
