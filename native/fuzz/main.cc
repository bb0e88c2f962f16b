// penstock_fuzz [--seed N] [--first N] [--count N] [--seconds N] FILE...
//
// Changes JPEG files at random and decodes them by native/jpeg/ and by libjpeg. Each change is a function of the seed and its
// number. What must hold: where our decoder succeeds, libjpeg gives no warning and the same coefficients and pixels; calls of
// any number of MCUs, skipping and seeking come to the same. The first file for which that does not hold, or that a sanitizer
// reports, is written to fuzz-SEED-NUMBER.jpg, and the exit status is not 0.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/mutation.h"
#include "fuzz/pixels.h"
#include "reference/coefficients.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace penstock::fuzz {
namespace {

constexpr std::uint64_t kMostPixels = 1 << 16;

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

struct Counts {
  std::uint64_t files = 0, headers = 0, decoded = 0;
};

// The last rows of MCUs of all coefficients.
bool ends_with(const reference::Coefficients& all, const reference::Coefficients& part) {
  for (std::size_t i = 0; i < all.size(); ++i)
    if (part[i].values.size() > all[i].values.size() ||
        !std::equal(part[i].values.rbegin(), part[i].values.rend(), all[i].values.rbegin()))
      return false;
  return true;
}

// What is wrong with how a file is decoded; nullptr: nothing. The number chooses what is compared with the plain way.
const char* fault(const Bytes& file, std::uint64_t number, Counts& counts) {
  static jpeg::EntropyDecoder decoder;  // as in a worker, one for all files
  // Memory of its own, so that a sanitizer knows where it ends.
  const Bytes exact(file.begin(), file.end());
  reference::LibjpegFile libjpeg(exact);
  ++counts.files;
  if (!libjpeg.open(kMostPixels)) return nullptr;
  const auto scan = libjpeg.scan();
  if (!scan) return nullptr;
  ++counts.headers;
  jpeg::RowStates states;
  const auto ours = reference::decode_scan(decoder, *scan, {}, &states);

  const int run = static_cast<int>(number / 4 % 5) + 1;
  const int row = static_cast<int>(number / 4 % static_cast<std::uint64_t>(scan->mcu_rows()));
  if (number % 4 == 0 && reference::decode_scan(decoder, *scan, {run, 0, std::nullopt}) != ours)
    return "calls for other numbers of MCUs give something else";
  if (number % 4 == 1) {
    const auto skipped = reference::decode_scan(decoder, *scan, {0, row, std::nullopt});
    if (skipped.has_value() != ours.has_value()) return "skipping sees something else than decoding";
    if (ours && !ends_with(*ours, *skipped)) return "skipping gives other coefficients";
    const bool known = states.known.size() > static_cast<std::size_t>(row);
    if (known && reference::decode_scan(decoder, *scan, {run, row, states.known[static_cast<std::size_t>(row)]}) != skipped)
      return "seeking and skipping give something else";
  }
  if (number % 4 == 2) {  // any state is safe
    const jpeg::RowState state{.bit = static_cast<std::uint32_t>(number * 0x9E3779B9u % (8 * scan->data.size() + 64))};
    (void)reference::decode_scan(decoder, *scan, {run, row, state});
  }

  if (!ours) return nullptr;
  ++counts.decoded;
  const auto reference = libjpeg.coefficients();
  if (!reference) return "libjpeg warns or fails";
  if (*reference != *ours) return "libjpeg gives other coefficients";
  return nullptr;
}

std::uint64_t number_of(const char* text) {
  std::uint64_t value = 0;
  const char* const end = text + std::strlen(text);
  if (const auto [rest, error] = std::from_chars(text, end, value); error != std::errc{} || rest != end) {
    std::fprintf(stderr, "penstock_fuzz: %s is no number\n", text);
    std::exit(2);
  }
  return value;
}

void report(const Counts& counts, std::uint64_t boxes) {
  using Number = unsigned long long;
  std::printf("%llu files, %llu with headers that are decoded here, %llu decoded, %llu boxes of pixels equal\n", Number{counts.files},
              Number{counts.headers}, Number{counts.decoded}, Number{boxes});
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  std::uint64_t first = 0, count = UINT64_MAX, seconds = UINT64_MAX;
  std::vector<Bytes> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option.starts_with("--") && i + 1 < argc) {
      const std::uint64_t value = number_of(argv[++i]);
      if (option == "--seed") current.seed = value;
      else if (option == "--first") first = value;
      else if (option == "--count") count = value;
      else if (option == "--seconds") seconds = value;
      else return std::fprintf(stderr, "penstock_fuzz: unknown option %s\n", argv[i - 1]), 2;
      continue;
    }
    std::ifstream file(argv[i], std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (corpus.back().size() < 4) return std::fprintf(stderr, "penstock_fuzz: cannot read %s\n", argv[i]), 2;
  }
  if (corpus.empty()) return std::fprintf(stderr, "penstock_fuzz: needs JPEG files\n"), 2;

  Counts counts;
  PixelComparison pixels;
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < count; ++i) {
    current.number = first + i;
    // The files of a corpus themselves come first.
    current.file = current.number < corpus.size() ? corpus[current.number]
                                                  : Mutator(corpus, current.seed << 40 ^ current.number).next();
    const char* wrong = fault(current.file, current.number, counts);
    if (wrong == nullptr) wrong = pixels.fault(current.file, current.number);
    if (wrong != nullptr) {
      std::fprintf(stderr, "penstock_fuzz: %s\n", wrong);
      current.write();
      return 1;
    }
    if (i % 1'000'000 == 999'999) report(counts, pixels.equal());
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    if (spent.count() > static_cast<double>(seconds)) break;
  }
  report(counts, pixels.equal());
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
