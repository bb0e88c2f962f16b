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
  unsigned count = 0;                  // how many of them are there, 0 to 63

  static constexpr unsigned kRefilled = 56;  // bits that are there at least after refill()

  [[gnu::always_inline]] static std::uint64_t load(const std::uint8_t* from) noexcept {
    std::uint64_t bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    if constexpr (std::endian::native == std::endian::little) bytes = __builtin_bswap64(bytes);
    return bytes;
  }

  // Whole bytes until more do not fit, without a branch.
  [[gnu::always_inline]] void refill() noexcept {
    window |= load(next) >> count;
    next += (63 - count) >> 3;
    count |= kRefilled;
  }

  [[gnu::always_inline]] void drop(unsigned bits) noexcept {
    window <<= bits;
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
    const unsigned before = count + bits, bytes = (before + 7) / 8;
    start(next - bytes, bytes * 8 - before);
  }
};

}  // namespace penstock::jpeg
