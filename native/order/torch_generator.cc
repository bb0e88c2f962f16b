#include "order/torch_generator.h"

#include <cstring>
#include <utility>

namespace penstock {
namespace {

// Where CPUGeneratorImplStateLegacy has its parts, in bytes; the words of the engine take 8 bytes each.
constexpr std::size_t kLeft = 8, kSeeded = 12, kNext = 16, kFirstWord = 24;

template <class T>
T get(std::span<const std::uint8_t> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

template <class T>
void put(std::span<std::uint8_t> bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

}  // namespace

TorchGenerator::TorchGenerator(std::uint32_t seed) noexcept {
  state_[0] = seed;
  for (std::uint32_t i = 1; i < kWords; ++i) state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
}

bool TorchGenerator::load(std::span<const std::uint8_t> state) noexcept {
  if (state.size() != kStateBytes || get<std::int32_t>(state, kSeeded) != 1) return false;
  const auto left = get<std::int32_t>(state, kLeft);
  const auto next = get<std::uint64_t>(state, kNext);
  // A fresh engine has 1 left and next = 0; a used one has all words that are left behind next.
  if (left < 1 || left > static_cast<std::int32_t>(kWords) || next > kWords) return false;
  if (left > 1 && next + static_cast<std::uint64_t>(left) != kWords + 1) return false;
  for (std::size_t i = 0; i < kWords; ++i)
    state_[i] = static_cast<std::uint32_t>(get<std::uint64_t>(state, kFirstWord + 8 * i));
  next_ = left == 1 ? kWords : static_cast<std::uint32_t>(next);
  used_ = false;
  return true;
}

void TorchGenerator::store(std::span<std::uint8_t> state) const noexcept {
  if (state.size() != kStateBytes || !used_) return;
  for (std::size_t i = 0; i < kWords; ++i) put(state, kFirstWord + 8 * i, std::uint64_t{state_[i]});
  put(state, kLeft, static_cast<std::int32_t>(kWords + 1 - next_));
  put(state, kNext, std::uint64_t{next_});
}

std::uint32_t TorchGenerator::word() noexcept {
  if (next_ == kWords) twist();
  used_ = true;
  std::uint32_t y = state_[next_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  y ^= y >> 18;
  return y;
}

void TorchGenerator::permutation(std::span<std::uint32_t> of) noexcept {
  const auto size = static_cast<std::uint32_t>(of.size());
  for (std::uint32_t i = 0; i < size; ++i) of[i] = i;
  for (std::uint32_t i = 0; i + 1 < size; ++i) std::swap(of[i], of[i + below(size - i)]);
}

void TorchGenerator::twist() noexcept {
  const auto mixed = [](std::uint32_t high, std::uint32_t low) {
    return ((high & 0x80000000u) | (low & 0x7fffffffu)) >> 1 ^ ((low & 1u) != 0 ? 0x9908b0dfu : 0u);
  };
  for (std::size_t i = 0; i < kWords - kShift; ++i) state_[i] = state_[i + kShift] ^ mixed(state_[i], state_[i + 1]);
  for (std::size_t i = kWords - kShift; i + 1 < kWords; ++i)
    state_[i] = state_[i + kShift - kWords] ^ mixed(state_[i], state_[i + 1]);
  state_[kWords - 1] = state_[kShift - 1] ^ mixed(state_[kWords - 1], state_[0]);
  next_ = 0;
}

}  // namespace penstock
