// What the loop over a loader's batches does with its time, added up batch by batch.
//
// Threads: any thread may call any method, at any time. Memory: plain numbers.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

namespace penstock {

class LoopCounter {
 public:
  // Waits are counted by their length: up to 1 us, 2 us, 4 us, ...; the last class holds all longer ones.
  static constexpr std::size_t kWaitClasses = 28;

  // Times are seconds.
  struct Counts {
    std::uint64_t batches = 0, in_flight = 0;
    double waited = 0, first_waited = 0, worked = 0, longest_wait = 0;
    std::array<std::uint64_t, kWaitClasses> waits{};
  };

  // A batch was waited for; `worked`: between the batch before and the call for this one, none for the first of a pass.
  void add(double waited, std::optional<double> worked, std::uint64_t in_flight) noexcept {
    const std::lock_guard hold(lock_);
    ++counts_.batches;
    counts_.in_flight += in_flight;
    counts_.waited += waited;
    if (!worked) {
      counts_.first_waited += waited;
      return;
    }
    counts_.worked += std::max(0.0, *worked);
    counts_.longest_wait = std::max(counts_.longest_wait, waited);
    const double microseconds = waited > 0 ? std::min(waited * 1e6, 1e12) : 0;
    const auto length = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(microseconds)));
    ++counts_.waits[std::min(kWaitClasses - 1, length)];
  }

  // The loop worked on the last batch of its pass.
  void add_work(double seconds) noexcept {
    const std::lock_guard hold(lock_);
    counts_.worked += seconds;
  }

  [[nodiscard]] Counts counts() const noexcept {
    const std::lock_guard hold(lock_);
    return counts_;
  }

 private:
  mutable std::mutex lock_;
  Counts counts_;
};

}  // namespace penstock
