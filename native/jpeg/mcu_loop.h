// The inner loop of Huffman decoding (F.2.2 of ITU-T T.81). Everything here is inlined, so that it is compiled for the
// instructions of whichever function calls it.
//
// Threads: functions of their arguments. Memory: borrowed for the call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "jpeg/bit_reader.h"
#include "jpeg/entropy_coded_segment.h"
#include "jpeg/entropy_decoder.h"
#include "jpeg/huffman_code.h"

namespace penstock::jpeg {

// Figure A.6, from zigzag to natural order. What is behind the last coefficient goes to the first one, which is written
// last.
inline constexpr auto kNaturalOrder = [] {
  std::array<std::uint8_t, 256> order{};
  int x = 0, y = 0;
  for (int k = 0; k < 64; ++k) {
    order[k] = static_cast<std::uint8_t>(8 * y + x);
    const bool up = (x + y) % 2 == 0;
    if (up && x == 7) ++y;
    else if (up && y == 0) ++x;
    else if (up) ++x, --y;
    else if (y == 7) ++x;
    else if (x == 0) ++y;
    else --x, ++y;
  }
  return order;
}();

inline constexpr std::size_t kLastCoefficient = 63;

// RECEIVE and EXTEND of F.2.2.1.
[[gnu::always_inline]] inline int receive(BitReader& bits, int size) {
  const int value = extend(static_cast<int>(bits.window >> 1 >> (63 - size)), size);
  bits.drop(static_cast<unsigned>(size));
  return value;
}

// A DC difference by itself. False: the bits are not a code.
[[gnu::always_inline]] inline bool decode_difference(BitReader& bits, const HuffmanCode& code, int& difference) {
  const HuffmanCode::Symbol symbol = code.find(static_cast<std::uint32_t>(bits.window >> 48));
  bits.drop(static_cast<unsigned>(symbol.length));
  difference = receive(bits, symbol.value);
  bits.refill();
  return symbol.length > 0;
}

// One AC symbol by itself (F.2.2.2), behind coefficient `at` in zigzag order, which moves on. False: the bits are not a code,
// or a coefficient behind the last one.
template <bool kStore>
[[gnu::always_inline]] inline bool decode_coefficient(BitReader& bits, const HuffmanCode& code, std::size_t& at, std::int16_t* block) {
  bits.refill();
  const HuffmanCode::Symbol symbol = code.find(static_cast<std::uint32_t>(bits.window >> 48));
  bits.drop(static_cast<unsigned>(symbol.length));
  const int run = symbol.value >> 4, size = symbol.value & 15;
  if (size == 0 && run != 15) {
    at += LookupEntry::kEndOfBlock;
    return symbol.length > 0;
  }
  at += static_cast<std::size_t>(run + 1);
  if (at > kLastCoefficient) return false;
  const int value = receive(bits, size);
  if constexpr (kStore) block[kNaturalOrder[at]] = static_cast<std::int16_t>(value);
  bits.refill();
  return true;
}

// A block (F.2.2.1, F.2.2.2). Refilled bits serve two look-ups, of 25 bits at most.
template <bool kStore>
[[gnu::always_inline]] inline bool decode_block(BitReader& bits, const BlockTables& tables, int& prediction,
                                                std::int16_t* block) {
  constexpr int kShift = 64 - LookupEntry::kLookupBits;
  bits.refill();
  LookupEntry entry = tables.first[bits.window >> kShift];
  int value = entry.last_value(bits.window);
  bits.drop(entry.word());
  std::size_t at = entry.steps();  // the last coefficient so far, in zigzag order
  if constexpr (kStore) block[kNaturalOrder[at]] = static_cast<std::int16_t>(value);
  int difference = entry.first_value() + (value & -static_cast<int>(at == 0));
  const auto look_up = [&]() __attribute__((always_inline)) {
    entry = tables.ac[bits.window >> kShift];
    if constexpr (kStore) {
      block[kNaturalOrder[at + entry.first_steps()]] = entry.first_value();
      block[kNaturalOrder[at + entry.steps()]] = static_cast<std::int16_t>(entry.last_value(bits.window));
    }
    at += entry.steps();
    bits.drop(entry.word());
  };
  for (;;) {
    if (at < kLastCoefficient) do {
        look_up();
        if (at >= kLastCoefficient) break;
        bits.refill();
        look_up();
      } while (at < kLastCoefficient);
    // The block is full; or an end-of-block code came before it was.
    if (at == kLastCoefficient || at - LookupEntry::kEndOfBlock < kLastCoefficient) break;
    if (at == LookupEntry::kNoDifference) {  // a long DC code
      if (!decode_difference(bits, tables.dc_code, difference)) return false;
      at = 0;
      continue;
    }
    // A long AC code; or an entry whose first symbol was the last one of the block.
    at -= entry.steps();
    bits.rewind(entry.bits());
    if (!decode_coefficient<kStore>(bits, tables.ac_code, at, block)) return false;
  }
  prediction += difference;
  if constexpr (kStore) block[0] = static_cast<std::int16_t>(prediction);
  return true;
}

// MCUs of one restart interval. False: they are not as T.81 has them, or the segment is too short.
template <bool kStore>
[[gnu::always_inline]] inline bool decode_mcus(int mcus, EntropyCodedSegment& segment, std::span<const McuBlock> blocks,
                                               std::array<int, 3>& predictions, McuPlace* places) {
  BitReader bits = segment.reader;
  std::array<int, 3> prediction = predictions;
  for (; mcus > 0; --mcus) {
    if (!segment.has_room(bits)) {
      BitReader moved = bits;  // `bits` itself stays in registers: no reference to it leaves this function
      if (!segment.make_room(moved)) return false;
      bits = moved;
    }
    unsigned reach = 0;  // of the DC coefficients
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const McuBlock& block = blocks[i];
      int& last = prediction[static_cast<std::size_t>(block.component)];
      if (!decode_block<kStore>(bits, *block.tables, last, kStore ? places[i].next : nullptr)) return false;
      reach |= static_cast<unsigned>(last + 0x8000);
      if constexpr (kStore) places[i].next += places[i].step;
    }
    if (reach > 0xFFFF) return false;
  }
  segment.reader = bits;
  predictions = prediction;
  return !segment.overrun(bits);
}

}  // namespace penstock::jpeg
