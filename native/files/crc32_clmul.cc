// CRC-32 by carry-less multiplication, after Gopal et al., "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", Intel 2009: a message's front is multiplied by the residue of the power of x that it
// stands before its back by, and added to the back, until 16 bytes are left that have the message's CRC.
#if defined(__x86_64__)

#include <immintrin.h>

#include <array>

#include "files/crc32_tables.h"

#define PENSTOCK_CLMUL __attribute__((target("pclmul")))
#define PENSTOCK_VPCLMUL __attribute__((target("avx2,pclmul,vpclmulqdq")))

namespace penstock::crc {
namespace {

// A product of reflected numbers is one bit too low: its factor is doubled.
constexpr std::uint64_t factor(int n) { return std::uint64_t{power_of_x(n)} << 1; }

// The factors that move 16 bytes on by so many bits: of their first and of their second 8 bytes.
struct Fold {
  std::uint64_t first, second;
};
constexpr Fold fold_by(int bits) { return {factor(bits + 32), factor(bits - 32)}; }

static_assert(fold_by(512).first == 0x154442bd4 && fold_by(512).second == 0x1c6e41596);  // as in the paper
static_assert(fold_by(128).first == 0x1751997d0 && fold_by(128).second == 0x0ccaa009e);

PENSTOCK_CLMUL inline __m128i load(const std::uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

PENSTOCK_CLMUL inline __m128i factors(Fold fold) {
  return _mm_set_epi64x(static_cast<long long>(fold.second), static_cast<long long>(fold.first));
}

PENSTOCK_CLMUL inline __m128i moved(__m128i x, __m128i by) {
  return _mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11));
}

// The register after 16 bytes that stand for all before, and after the bytes that follow.
PENSTOCK_CLMUL inline std::uint32_t finish(__m128i x, const std::uint8_t* data, std::size_t size) {
  const __m128i by_16_bytes = factors(fold_by(128));
  for (; size >= 16; data += 16, size -= 16) x = _mm_xor_si128(moved(x, by_16_bytes), load(data));
  std::array<std::uint8_t, 16> rest;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest.data()), x);
  return portable(portable(0, rest.data(), rest.size()), data, size);
}

PENSTOCK_VPCLMUL inline __m256i load_wide(const std::uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

PENSTOCK_VPCLMUL inline __m256i moved_wide(__m256i x, __m256i by) {
  return _mm256_xor_si256(_mm256_clmulepi64_epi128(x, by, 0x00), _mm256_clmulepi64_epi128(x, by, 0x11));
}

}  // namespace

PENSTOCK_CLMUL std::uint32_t clmul128(std::uint32_t value, const std::uint8_t* data, std::size_t size) noexcept {
  constexpr std::size_t kLanes = kLeast128 / 16;
  __m128i x[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) x[i] = load(data + 16 * i);
  x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128(static_cast<int>(value)));
  data += kLeast128;
  size -= kLeast128;
  const __m128i by_all_lanes = factors(fold_by(static_cast<int>(kLeast128) * 8));
  for (; size >= kLeast128; data += kLeast128, size -= kLeast128)
    for (std::size_t i = 0; i < kLanes; ++i) x[i] = _mm_xor_si128(moved(x[i], by_all_lanes), load(data + 16 * i));
  const __m128i by_lane = factors(fold_by(128));
  for (std::size_t i = 1; i < kLanes; ++i) x[i] = _mm_xor_si128(moved(x[i - 1], by_lane), x[i]);
  return finish(x[kLanes - 1], data, size);
}

PENSTOCK_VPCLMUL std::uint32_t clmul256(std::uint32_t value, const std::uint8_t* data, std::size_t size) noexcept {
  constexpr std::size_t kLanes = kLeast256 / 32;
  __m256i x[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) x[i] = load_wide(data + 32 * i);
  x[0] = _mm256_xor_si256(x[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int>(value))));
  data += kLeast256;
  size -= kLeast256;
  const __m256i by_all_lanes = _mm256_broadcastsi128_si256(factors(fold_by(static_cast<int>(kLeast256) * 8)));
  for (; size >= kLeast256; data += kLeast256, size -= kLeast256)
    for (std::size_t i = 0; i < kLanes; ++i)
      x[i] = _mm256_xor_si256(moved_wide(x[i], by_all_lanes), load_wide(data + 32 * i));
  const __m256i by_lane = _mm256_broadcastsi128_si256(factors(fold_by(256)));
  for (std::size_t i = 1; i < kLanes; ++i) x[i] = _mm256_xor_si256(moved_wide(x[i - 1], by_lane), x[i]);
  __m256i last = x[kLanes - 1];
  for (; size >= 32; data += 32, size -= 32) last = _mm256_xor_si256(moved_wide(last, by_lane), load_wide(data));
  const __m128i low = _mm256_castsi256_si128(last), high = _mm256_extracti128_si256(last, 1);
  return finish(_mm_xor_si128(moved(low, factors(fold_by(128))), high), data, size);
}

}  // namespace penstock::crc

#endif
