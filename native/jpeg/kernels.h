// What follows entropy decoding, in inner loops: the inverse DCT of blocks, and rows of samples to interleaved RGB.
//
// The results are those of libjpeg-turbo's accurate integer transform ("ISLOW", jidctint), its fancy upsampling
// (jdsample.c) and its colour conversion (jdcolor.c) as its SIMD code for x86-64 computes them: products of
// dequantisation wrap at 16 bits and results of the first pass saturate at 16 bits, which only files with values that
// no encoder writes can tell from its C code.
//
// Threads: pure functions of their arguments. Memory: the caller owns everything.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace penstock::jpeg {

// How a component's samples are to those of the first one, and how its missing samples are found. The names are
// libjpeg's: h2v1 has half the columns, h1v2 half the rows; both interpolate ("fancy upsampling").
enum class Sampling : std::uint8_t { full, h2v1, h1v2, h2v2, doubled };  // doubled: half the columns, repeated

enum class Colours : std::uint8_t { grey, ycc, rgb, luma };  // luma: ycc, of which only the first component is wanted, as grey

// The samples of one row of pixels. Of the second and third component `nearest` is the row that lies nearest to it, and
// `next` the one that interpolation adds (h1v2, h2v2). Where columns are halved `first` points at the first pixel of a
// pair, and the samples before and after those that are used can be read.
struct SampleRow {
  const std::uint8_t* first = nullptr;
  std::array<const std::uint8_t*, 2> nearest{};
  std::array<const std::uint8_t*, 2> next{};
  int bias = 0;  // of h1v2: 1 where the next row is above, 2 where it is below
};

using QuantisationTable = std::array<std::uint16_t, 64>;  // in natural order

struct Kernels {
  // Dequantises and transforms `count` blocks, which lie one after the other, to samples that lie side by side: block b
  // to the 8 x 8 samples at samples + 8 * b. It may work on blocks, and write columns, up to the next multiple of 4.
  void (*transform)(const std::int16_t* blocks, int count, const QuantisationTable& table, std::uint8_t* samples,
                    std::ptrdiff_t stride);
  // `pixels` of a row, by sampling. Whole groups of kGroup are written, and samples read, as the row is long.
  using Convert = void (*)(const SampleRow& row, int pixels, std::uint8_t* rgb);
  std::array<Convert, 5> ycc, rgb;
  Convert grey;
};

inline constexpr int kGroup = 64;

// Ways to compute the same. `best` is the widest that this processor has.
enum class Instructions : std::uint8_t { portable, avx2, avx512, best };

// nullptr where the processor lacks them.
[[nodiscard]] const Kernels* kernels(Instructions instructions) noexcept;

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels, kAvx512Kernels;
#endif

// One block without vectors: for vectors of blocks of which a first row would wrap where libjpeg shifts it.
void transform_block(const std::int16_t* block, const QuantisationTable& table, std::uint8_t* samples,
                     std::ptrdiff_t stride) noexcept;

// Constants of jidctint.c: 2^13 times the cosines' sums, rounded.
inline constexpr int kConstBits = 13, kPass1Bits = 2;
inline constexpr int k0_298 = 2446, k0_390 = 3196, k0_541 = 4433, k0_765 = 6270, k0_899 = 7373, k1_175 = 9633,
                     k1_501 = 12299, k1_847 = 15137, k1_961 = 16069, k2_053 = 16819, k2_562 = 20995, k3_072 = 25172;

}  // namespace penstock::jpeg
