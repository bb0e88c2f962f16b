// torch's CPU generator and the draws that torchvision's transforms make from it, bit for bit.
//
// The engine is the Mersenne Twister MT19937 of M. Matsumoto and T. Nishimura (ACM Transactions on Modeling and Computer
// Simulation 8, 1998), as ATen/core/MT19937RNGEngine.h has it; the distributions are those of ATen's
// TransformationHelper.h and DistributionsHelper.h, the state is CPUGeneratorImpl's (torch.get_rng_state).
//
// Threads: an object belongs to one thread. Memory: 2.5 KB in the object; no allocation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

class TorchGenerator {
 public:
  static constexpr std::size_t kStateBytes = 5056;

  // As after torch.manual_seed(seed).
  explicit TorchGenerator(std::uint32_t seed) noexcept;

  // Takes over what torch.get_rng_state() gives; false, and nothing changed: it is not such a state.
  [[nodiscard]] bool load(std::span<const std::uint8_t> state) noexcept;
  // Writes what the engine is now into a state that load() has taken; nothing where no word was drawn since.
  void store(std::span<std::uint8_t> state) const noexcept;

  // 32 random bits.
  std::uint32_t word() noexcept;
  // torch.rand(1).item(): a multiple of 2^-24 in [0, 1).
  double rand() noexcept { return static_cast<double>(word() & 0xffffffu) * 0x1p-24; }
  // torch.empty(1).uniform_(from, to).item()
  double uniform(double from, double to) noexcept {
    const float low = static_cast<float>(from), high = static_cast<float>(to);
    return static_cast<float>(rand() * static_cast<double>(high - low) + static_cast<double>(low));
  }
  // torch.randint(bound, (1,)).item(), 1 <= bound < 2^28.
  std::uint32_t below(std::uint32_t bound) noexcept { return word() % bound; }
  // torch.randperm(size)
  void permutation(std::span<std::uint32_t> of) noexcept;

 private:
  static constexpr std::size_t kWords = 624, kShift = 397;

  void twist() noexcept;

  std::array<std::uint32_t, kWords> state_{};
  std::uint32_t next_ = kWords;  // the position of the next word; kWords: twist() comes first
  bool used_ = false;
};

}  // namespace penstock
