// Random draws as a pure function of (seed, epoch, sample, position, operation): nothing to save, nothing to advance.
// `position` is the sample's place in the order of the epoch, so that a sample that comes several times draws anew.
//
// The generator is Philox4x32-10 of J. Salmon, M. Moraes, R. Dror and D. Shaw, "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011), with the constants and the known answers of their Random123 library.
// An epoch's key is the Philox block of (epoch) under the key (seed), a position's that of (position) under the epoch's
// key; an operation's words are the blocks of (sample, operation, 0), (sample, operation, 1), ... under the position's
// key. An operation is known by how many operations that draw came before it.
//
// Threads: plain values; a Draws object belongs to one thread. Memory: no allocation.
#pragma once

#include <array>
#include <cstdint>

namespace penstock {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

// One block of Philox4x32 with ten rounds.
constexpr PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      key[0] += 0x9E3779B9u;
      key[1] += 0xBB67AE85u;
    }
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
  }
  return counter;
}

// The key that all draws of one epoch share.
constexpr PhiloxKey epoch_key(std::uint64_t seed, std::uint64_t epoch) {
  const PhiloxCounter block =
      philox({static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32), 0x6b657973u, 0u},
             {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return {block[0], block[1]};
}

// The key that all draws at one position of an epoch share.
constexpr PhiloxKey position_key(PhiloxKey epoch, std::uint64_t position) {
  const PhiloxCounter block =
      philox({static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), 0x706f7369u, 0u}, epoch);
  return {block[0], block[1]};
}

// The endless word sequence of one operation on one sample.
class Draws {
 public:
  constexpr Draws(PhiloxKey key, std::uint64_t sample, std::uint32_t operation)
      : key_(key),
        counter_{static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32), operation, 0u} {}

  constexpr std::uint32_t word() {
    if (next_ == 4) {
      words_ = philox(counter_, key_);
      ++counter_[3];
      next_ = 0;
    }
    return words_[next_++];
  }

  // Uniform in [0, 1), a multiple of 2^-53.
  constexpr double uniform() {
    const std::uint64_t high = word() >> 5;
    const std::uint64_t low = word() >> 6;
    return static_cast<double>(high << 26 | low) * 0x1p-53;
  }

  constexpr double uniform(double from, double to) { return from + (to - from) * uniform(); }

  // Each of 0 .. bound-1 equally likely; bound >= 1. Method: D. Lemire, "Fast random integer generation in an
  // interval", ACM Transactions on Modeling and Computer Simulation 29 (2019).
  constexpr std::uint32_t below(std::uint32_t bound) {
    std::uint64_t product = std::uint64_t{word()} * bound;
    if (static_cast<std::uint32_t>(product) < bound) {
      const std::uint32_t threshold = (0u - bound) % bound;
      while (static_cast<std::uint32_t>(product) < threshold) product = std::uint64_t{word()} * bound;
    }
    return static_cast<std::uint32_t>(product >> 32);
  }

 private:
  PhiloxKey key_;
  PhiloxCounter counter_;
  PhiloxCounter words_{};
  std::uint32_t next_ = 4;
};

// The draws of one sample, operation by operation. Nothing is computed for a sample that draws nothing.
class SampleDraws {
 public:
  constexpr SampleDraws(PhiloxKey epoch, std::uint64_t sample, std::uint64_t position)
      : key_(epoch), sample_(sample), position_(position) {}

  // Of the next operation.
  constexpr Draws next() {
    if (!keyed_) {
      key_ = position_key(key_, position_);
      keyed_ = true;
    }
    return {key_, sample_, operation_++};
  }

  // How many operations have drawn.
  [[nodiscard]] constexpr std::uint32_t count() const { return operation_; }
  constexpr void set_count(std::uint32_t count) { operation_ = count; }

 private:
  PhiloxKey key_;  // the epoch's until the first draw, then the position's
  std::uint64_t sample_;
  std::uint64_t position_;
  std::uint32_t operation_ = 0;
  bool keyed_ = false;
};

static_assert(philox({0, 0, 0, 0}, {0, 0}) == PhiloxCounter{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
static_assert(philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}) ==
              PhiloxCounter{0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u});

}  // namespace penstock
