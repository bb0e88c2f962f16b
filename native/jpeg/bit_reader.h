// The bits of an entropy-coded segment from which the stuffed bytes are gone, most significant bit first.
//
// Threads: a value of one thread. Memory: borrows the bytes; whoever reads sees to it that 8 bytes at `next` may be read.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace penstock::jpeg {

struct BitReader {
  const std::uint8_t* next = nullptr;  // the first byte that `count` does not cover
  std::uint64_t window = 0;            // the coming bits, left-justified; those beyond `count` are right or zero
  std::uint64_t count = 0;             // its lowest 6 bits say how many of them are there; the others are arbitrary

  static constexpr unsigned kRefilled = 56;  // bits that are there at least after refill()

  [[nodiscard]] unsigned left() const noexcept { return count & 63; }

  [[gnu::always_inline]] static std::uint64_t load(const std::uint8_t* from) noexcept {
    std::uint64_t bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    if constexpr (std::endian::native == std::endian::little) bytes = __builtin_bswap64(bytes);
    return bytes;
  }

  // Whole bytes until more do not fit, without a branch.
  [[gnu::always_inline]] void refill() noexcept {
    window |= load(next) >> (count & 63);
    next += (~count >> 3) & 7;
    count |= kRefilled;
  }

  // So many bits as the lowest 6 of `bits` say, as instructions that shift understand it.
  [[gnu::always_inline]] void drop(std::uint64_t bits) noexcept {
    window <<= bits & 63;
    count -= bits;
  }

  // Goes on at bit `skip` (0 to 7) of a byte.
  void start(const std::uint8_t* from, unsigned skip) noexcept {
    window = load(from) << skip;
    next = from + 7;
    count = kRefilled - skip;
  }

  // Takes back bits that were dropped: as many as have been since a byte that is still there.
  void rewind(unsigned bits) noexcept {
    const unsigned before = left() + bits, bytes = (before + 7) / 8;
    start(next - bytes, bytes * 8 - before);
  }
};

}  // namespace penstock::jpeg
