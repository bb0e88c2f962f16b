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
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/mutation.h"
#include "fuzz/pixels.h"

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
    // Memory of its own, so that a sanitizer knows where it ends.
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
