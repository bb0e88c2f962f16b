// What one worker did, piece by piece: for each batch that it worked on, from when to when, and in which stage most of
// the time went. Kept only where somebody records.
//
// Threads: begin() and end() are called by the worker, take() by one thread at a time, beside the worker. Memory: a ring
// of a fixed size, in which a piece that finds no room is lost.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "files/stages.h"

namespace penstock {

// Times are nanoseconds of std::chrono::steady_clock: CLOCK_MONOTONIC, which Python's time.perf_counter() reads too.
struct WorkSpan {
  std::int64_t begin, end;
  std::uint32_t samples;
  Stage stage;  // that took the most time of the piece
};

[[nodiscard]] inline std::int64_t span_time(std::chrono::steady_clock::time_point at) noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

// What one thread did since its spans were taken before.
struct ThreadSpans {
  enum Kind : std::uint8_t { worker, caller, reader };

  Kind kind;
  unsigned number;  // among the threads of its kind
  std::vector<WorkSpan> spans;
};

class Timeline {
 public:
  // The worker takes up a batch.
  void begin(const StageCounters& counters) noexcept {
    before_ = nanoseconds(counters);
    began_ = now();
  }

  // It has no more to do for that batch, of which it made so many samples.
  void end(const StageCounters& counters, std::uint32_t samples) noexcept {
    const std::int64_t ended = now();
    const std::uint32_t head = head_.load(std::memory_order_relaxed);
    if (head - tail_.load(std::memory_order_acquire) == ring_.size()) return;
    const Nanoseconds after = nanoseconds(counters);
    std::size_t most = 0;
    for (std::size_t i = 1; i < after.size(); ++i)
      if (after[i] - before_[i] > after[most] - before_[most]) most = i;
    ring_[head % ring_.size()] = {began_, ended, samples, static_cast<Stage>(most)};
    head_.store(head + 1, std::memory_order_release);
  }

  // Returns what was done since the last call.
  [[nodiscard]] std::vector<WorkSpan> take() {
    const std::uint32_t head = head_.load(std::memory_order_acquire);
    std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    std::vector<WorkSpan> taken;
    taken.reserve(head - tail);
    for (; tail != head; ++tail) taken.push_back(ring_[tail % ring_.size()]);
    tail_.store(tail, std::memory_order_release);
    return taken;
  }

 private:
  using Nanoseconds = std::array<std::uint64_t, kStages.size()>;

  static Nanoseconds nanoseconds(const StageCounters& counters) noexcept {
    Nanoseconds found{};
    for (std::size_t i = 0; i < found.size(); ++i) found[i] = counters.count(static_cast<Stage>(i)).nanoseconds;
    return found;
  }

  static std::int64_t now() noexcept { return span_time(std::chrono::steady_clock::now()); }

  std::array<WorkSpan, 1 << 14> ring_{};  // a power of two: counters of 32 bits may wrap
  std::atomic<std::uint32_t> head_{0}, tail_{0};
  std::int64_t began_ = 0;
  Nanoseconds before_{};
};

}  // namespace penstock
