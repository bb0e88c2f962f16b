// Where the time of a thread goes: it runs on a processor, it is ready and waits for one, or it sleeps.
//
// To read the wait for a processor takes some microseconds, so it is read where a thread was off the processor for
// longer, and of the time before that, anew after kFresh.
//
// Threads: a ThreadClock belongs to the thread that calls it. Memory: plain numbers.
#pragma once

#include <cstdint>

namespace penstock {

class ThreadClock {
 public:
  // Of one stretch of time: nanoseconds on a processor, those ready to run, and bytes that a storage gave.
  struct Lap {
    std::uint64_t running = 0, ready = 0, bytes = 0;
  };

  // The next stretch begins here.
  void start() noexcept;
  // Returns the stretch since start() or the last call, which took so many nanoseconds.
  Lap lap(std::uint64_t nanoseconds) noexcept;

  // Nanoseconds that the calling thread has waited for a processor so far. 0: the kernel does not tell. Source: the
  // second number of schedstat (the kernel's sched-stats.rst).
  static std::uint64_t ready_now() noexcept;
  // Those of the thread whose schedstat is open.
  static std::uint64_t ready_of(int statistics) noexcept;
  // Nanoseconds that the calling thread was on a processor so far.
  static std::uint64_t running_now() noexcept;

 private:
  static constexpr std::uint64_t kWorth = 50'000, kFresh = 5'000'000;

  std::uint64_t running_ = 0, ready_ = 0, bytes_ = 0;
};

}  // namespace penstock
