// Shuffles that are evaluated position by position.
//
// KeyedPermutation is a function of only (seed, epoch, position): an unbalanced Feistel network over the
// next power of two, walked until the value falls below n (Black and Rogaway, "Ciphers with arbitrary finite
// domains", 2002). Up to kTableSize samples it sorts by 64-bit keys instead, which makes every permutation
// equally likely, where a network over few bits would not.
//
// KeyedDraws is a function of (seed, epoch, position) too: whole numbers below a bound, drawn with replacement.
//
// Threads: any number; all are immutable. Memory: a KeyedPermutation owns at most 8 KiB, KeyedDraws nothing.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "order/random.h"

namespace penstock {

class KeyedPermutation {
 public:
  static constexpr std::uint64_t kTableSize = 1024;

  KeyedPermutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch);

  // Writes positions [begin, begin + count) to out; begin + count <= size.
  void take(std::uint64_t begin, std::uint64_t count, std::int64_t* out) const;

  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  static constexpr int kRounds = 12;
  [[nodiscard]] std::uint64_t walk(std::uint64_t position) const;

  std::uint64_t size_;
  int low_bits_ = 0;
  int high_bits_ = 0;
  std::array<std::uint64_t, kRounds> keys_{};
  std::vector<std::uint64_t> table_;
};

class KeyedDraws {
 public:
  // Each of 0 .. bound-1 is equally likely; bound is 1 .. 2^63.
  KeyedDraws(std::uint64_t bound, std::uint64_t seed, std::uint64_t epoch)
      : bound_(bound), key_(epoch_key(seed, epoch)) {}

  // Writes the draws of positions [begin, begin + count) to out.
  void take(std::uint64_t begin, std::uint64_t count, std::int64_t* out) const;

 private:
  std::uint64_t bound_;
  PhiloxKey key_;
};

}  // namespace penstock
