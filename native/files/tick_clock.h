// Readings of time that cost little: of the processor's time-stamp counter where Linux itself keeps its time by it
// (about 10 ns), else of std::chrono::steady_clock (about 25 ns).
//
// Threads: any thread may call any function. Memory: none.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace penstock {

class TickClock {
 public:
  // The ticks since some moment.
  [[nodiscard]] static std::uint64_t now() noexcept {
#if defined(__x86_64__)
    if (counts_cycles_) return __rdtsc();
#endif
    return steady();
  }

  // The nanoseconds between two readings: none where the processor of the second is a little behind that of the first.
  [[nodiscard]] static std::uint64_t nanoseconds(std::uint64_t earlier, std::uint64_t later) noexcept {
    if (later <= earlier) return 0;
    if (!counts_cycles_) return later - earlier;
    static const double each = measured();
    return static_cast<std::uint64_t>(static_cast<double>(later - earlier) * each);
  }

 private:
  [[nodiscard]] static std::uint64_t steady() noexcept {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
  }

  // The nanoseconds of a tick, as the steady clock has it since this library was loaded.
  [[nodiscard]] static double measured() noexcept;

  struct Readings {
    std::uint64_t ticks, nanoseconds;
  };

  static const bool counts_cycles_;
  static const Readings loaded_;
};

}  // namespace penstock
