// Shuffles that are evaluated position by position.
//
// TorchPermutation is the shuffle of torch's RandomSampler. torch.randperm(n) is a Fisher-Yates shuffle from the front:
// after step i, position i is final. So the first batch needs as many steps as it has samples, not n. The engine is
// MT19937, seeded with the low 32 bits, as at::CPUGeneratorImpl does (aten/src/ATen/native/TensorFactories.cpp,
// randperm_cpu).
//
// KeyedPermutation is a function of (seed, epoch, position) alone: an unbalanced Feistel network over the
// next power of two, walked until the value falls below n (Black and Rogaway, "Ciphers with arbitrary finite
// domains", 2002). Up to kTableSize samples it sorts by 64-bit keys instead, which makes every permutation
// equally likely, where a network over few bits would not.
//
// KeyedDraws is a function of (seed, epoch, position) too: whole numbers below a bound, drawn with replacement.
//
// Threads: one at a time for TorchPermutation; the keyed ones are immutable. Memory: TorchPermutation owns
// 4 bytes a sample, KeyedPermutation at most 8 KiB, KeyedDraws nothing.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "order/random.h"

namespace penstock {

class TorchPermutation {
 public:
  // torch uses this algorithm below 2^32 / 20 samples; larger n are refused by the caller.
  static constexpr std::uint64_t kMaxSize = 0xffffffffULL / 20;

  TorchPermutation(std::uint32_t size, std::uint64_t seed);

  // Writes positions [begin, begin + count) to out; begin + count <= size.
  void take(std::uint32_t begin, std::uint32_t count, std::int64_t* out);

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(values_.size()); }

 private:
  std::vector<std::uint32_t> values_;
  std::mt19937 engine_;
  std::uint32_t settled_ = 0;  // positions below this are final
};

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
