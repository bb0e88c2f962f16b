// A Huffman table of a JPEG (Annex C of ITU-T T.81) made ready for decoding (F.2.2): one code after the other, and by tables
// whose entries answer for up to two symbols.
//
// Threads: built by one thread, then read by any. Memory: objects own all they hold, and copy what they are built from.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "jpeg/scan.h"

namespace penstock::jpeg {

// F.2.2.1 EXTEND: the value of `size` additional bits.
[[nodiscard]] constexpr int extend(int bits, int size) noexcept {
  return size == 0 || bits >> (size - 1) != 0 ? bits : bits - (1 << size) + 1;
}

// The codes of a table by themselves: slow, and enough for all.
class HuffmanCode {
 public:
  struct Symbol {
    int value = 0;
    int length = 0;  // bits of its code; 0: the bits begin with no code of the table
  };

  // C.2. False: no prefix code, or one with a code of only ones (which C.2 forbids).
  [[nodiscard]] bool build(const HuffmanTable& table) noexcept;
  // F.2.2.3 DECODE: the symbol that 16 coming bits begin with.
  [[nodiscard]] Symbol find(std::uint32_t window) const noexcept;
  // Windows of so many bits that begin with a code of at most so many: those below this number, for codes are ordered.
  [[nodiscard]] std::uint32_t covered(int bits) const noexcept { return limit_[bits] >> (16 - bits); }

 private:
  std::array<std::uint32_t, 17> limit_{};   // the first window of 16 bits that begins with no code of so many bits or fewer
  std::array<std::int32_t, 17> offset_{};   // from a code of so many bits to the number of its symbol
  std::array<std::uint8_t, 256> symbols_{};
};

// What the next kLookupBits bits mean, in one word. An entry holds up to two symbols: a first one whose additional bits lie
// within the bits that were looked up, so that its value is known, and a last one whose code does. Each moves on in the
// zigzag order. What an entry lacks is there in a form that does no harm: a first value of 0 for the next coefficient,
// which has none yet, and a last symbol without additional bits, which has the value 0.
class LookupEntry {
 public:
  static constexpr int kLookupBits = 10;
  static constexpr int kEndOfBlock = 96;  // steps that no coefficient takes: the last symbol ends the block
  static constexpr int kNoEntry = 192;    // the bits begin with a longer code, or with none: nothing is taken
  static constexpr int kNoDifference = 255;  // the same of a DC code: more than an AC entry comes to behind 62 others

  constexpr LookupEntry() noexcept = default;
  // A last symbol by itself.
  constexpr LookupEntry(int code_bits, int size, int steps) noexcept
      : word_(std::uint64_t(code_bits + size) | std::uint64_t(code_bits) << 8 | std::uint64_t(63 - size) << 16 |
              std::uint64_t{1} << 24 | std::uint64_t(steps) << 56) {}
  // The same after a first symbol, of which `bits` were code and additional bits. Its steps are 0 where it is a DC
  // coefficient's.
  [[nodiscard]] constexpr LookupEntry after(int bits, int steps, int value) const noexcept {
    LookupEntry joined;
    joined.word_ = word_ + (std::uint64_t(bits) * 0x101 + (std::uint64_t(steps) << 56) +
                            (std::uint64_t(static_cast<std::uint16_t>(value)) << 32));
    if (steps > 1) joined.word_ += std::uint64_t(steps - 1) << 24;
    return joined;
  }

  // Bits that the entry takes in all, and those before the additional bits of the last symbol.
  [[nodiscard]] unsigned bits() const noexcept { return word_ & 63; }
  [[nodiscard]] std::uint64_t word() const noexcept { return word_; }  // bits() in its lowest 6 bits
  [[nodiscard]] unsigned code_bits() const noexcept { return (word_ >> 8) & 63; }
  // Steps in zigzag order to the coefficient of the first symbol, and to that of the last.
  [[nodiscard]] std::size_t first_steps() const noexcept { return static_cast<std::uint32_t>(word_) >> 24; }
  [[nodiscard]] std::size_t steps() const noexcept { return word_ >> 56; }
  [[nodiscard]] std::int16_t first_value() const noexcept { return static_cast<std::int16_t>(word_ >> 32); }

  // F.2.2.1 RECEIVE and EXTEND for the last symbol, without a branch; `window` is what was looked up.
  [[nodiscard, gnu::always_inline]] int last_value(std::uint64_t window) const noexcept {
    const std::uint64_t bits = window << code_bits();
    const auto negative = ~static_cast<std::uint64_t>(static_cast<std::int64_t>(bits) >> 63);  // all ones, or 0
    const std::uint64_t magnitude = ((bits ^ negative) >> 1) >> ((word_ >> 16) & 63);
    return static_cast<int>((magnitude ^ negative) - negative);
  }

 private:
  std::uint64_t word_ = 0;
};

using LookupTable = std::array<LookupEntry, std::size_t{1} << LookupEntry::kLookupBits>;

// The two tables of a component.
class BlockTables {
 public:
  // 2 microseconds. False where libjpeg refuses a table.
  [[nodiscard]] bool build(const HuffmanTable& dc, const HuffmanTable& ac) noexcept;

  HuffmanCode dc_code, ac_code;
  LookupTable first;  // a DC symbol, and the first AC symbol behind it; a single DC symbol is a last symbol of 0 steps
  LookupTable ac;
};

}  // namespace penstock::jpeg
