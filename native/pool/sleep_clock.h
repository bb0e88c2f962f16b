// How long a thread sleeps, and at which of its samples that is looked at.
//
// Threads: each object belongs to the thread that calls it. Memory: nothing is kept.
#pragma once

#include <chrono>
#include <cstdint>

namespace penstock {

// How long the calling thread sleeps: the time in which it neither runs nor waits for a processor.
class SleepClock {
 public:
  void start() noexcept;
  // The seconds asleep since start(), 0 where the thread slept for nothing worth a reader; `seconds`: all that passed.
  [[nodiscard]] double asleep(double& seconds) const noexcept;

 private:
  std::chrono::steady_clock::time_point began_;
  double awake_ = 0;
  long sleeps_ = 0;
};

// Sees at some of one thread's samples whether the thread sleeps.
class SleepMeter {
 public:
  // Whether the sample with this number is one.
  [[nodiscard]] static bool meters(std::uint32_t sample) noexcept { return sample < kFirst || sample % kEvery == 0; }

  // Whether the next sample is one; then end() follows it.
  [[nodiscard]] bool begin() noexcept;
  // The seconds asleep since begin(), which `seconds` lasted.
  [[nodiscard]] double end(double& seconds) const noexcept { return clock_.asleep(seconds); }

 private:
  static constexpr std::uint32_t kFirst = 16, kEvery = 64;  // all of the first samples, then one in so many

  std::uint32_t samples_ = 0;
  SleepClock clock_;
};

}  // namespace penstock
