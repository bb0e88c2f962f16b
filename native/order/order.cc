#include "order/order.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace penstock {

namespace {

// The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr std::uint64_t mask(int bits) { return (std::uint64_t{1} << bits) - 1; }

__extension__ using Wide = unsigned __int128;

// The operation of these draws, in the sense of random.h: no random transform has this number.
constexpr std::uint32_t kDrawOfIndex = 0x696e6478U;

std::uint64_t word64(Draws& draws) {
  const std::uint64_t high = draws.word();
  return high << 32 | draws.word();
}

// Draws::below with 64 bits.
std::uint64_t below(Draws& draws, std::uint64_t bound) {
  Wide product = Wide{word64(draws)} * bound;
  if (static_cast<std::uint64_t>(product) < bound) {
    const std::uint64_t threshold = (0 - bound) % bound;
    while (static_cast<std::uint64_t>(product) < threshold) product = Wide{word64(draws)} * bound;
  }
  return static_cast<std::uint64_t>(product >> 64);
}

}  // namespace

KeyedPermutation::KeyedPermutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch) : size_(size) {
  const std::uint64_t key = mix(mix(seed) ^ (epoch * 0xd1342543de82ef95ULL));
  for (int round = 0; round < kRounds; ++round) keys_[round] = mix(key + static_cast<std::uint64_t>(round));
  if (size <= kTableSize) {
    table_.resize(size);
    std::iota(table_.begin(), table_.end(), std::uint64_t{0});
    std::sort(table_.begin(), table_.end(), [&](std::uint64_t a, std::uint64_t b) {
      const std::uint64_t key_a = mix(keys_[0] ^ mix(a + keys_[1]));
      const std::uint64_t key_b = mix(keys_[0] ^ mix(b + keys_[1]));
      return key_a != key_b ? key_a < key_b : a < b;
    });
    return;
  }
  const auto bits = static_cast<int>(std::bit_width(size - 1));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
}

std::uint64_t KeyedPermutation::walk(std::uint64_t position) const {
  std::uint64_t value = position;
  do {
    std::uint64_t low = value & mask(low_bits_);
    std::uint64_t high = value >> low_bits_;
    for (int round = 0; round < kRounds; round += 2) {
      low ^= mix(high ^ keys_[round]) & mask(low_bits_);
      high ^= mix(low ^ keys_[round + 1]) & mask(high_bits_);
    }
    value = high << low_bits_ | low;
  } while (value >= size_);
  return value;
}

void KeyedPermutation::take(std::uint64_t begin, std::uint64_t count, std::int64_t* out) const {
  for (std::uint64_t i = 0; i < count; ++i)
    out[i] = static_cast<std::int64_t>(table_.empty() ? walk(begin + i) : table_[begin + i]);
}

void KeyedDraws::take(std::uint64_t begin, std::uint64_t count, std::int64_t* out) const {
  for (std::uint64_t i = 0; i < count; ++i) {
    Draws draws(key_, begin + i, kDrawOfIndex);
    out[i] = static_cast<std::int64_t>(below(draws, bound_));
  }
}

}  // namespace penstock
