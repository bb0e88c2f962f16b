// How long a thread worked at each stage of its samples, and how many samples each stage had.
//
// A reading of the clock costs about 25 ns. A file's sample reads it once a stage, which no open() or decoder notices;
// samples in memory, which cost little more than such a reading, are counted one by one and timed a batch at a time.
//
// Threads: StageCounters are written by one thread at a time and read by any, at any time, without a lock; merge() may
// be called by any thread. A StageClock belongs to one thread. Memory: plain numbers; counters fill cache lines of
// their own, and a StageClock borrows those that it writes to.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>

namespace penstock {

enum class Stage : std::uint8_t {
  open,     // a file is opened by its name
  read,     // its bytes are read and their layout is found
  check,    // CRC-32 of a tensor's elements
  decode,   // JPEG to pixels, the header included
  resize,   // all that a recipe does before its last pass: resizes, conversions to grey, copies for them
  convert,  // the last pass of a recipe: crops, flips, pads, element type and normalisation, into the row
  write,    // elements that were read aside are copied into the row
  gather,   // a row of an array in memory is copied into the row
  wait,     // a worker waits for a file that a reader is bringing
  read_ahead,  // a reader opens a file and brings its bytes: time of readers, not of workers
};

inline constexpr std::array<std::string_view, 10> kStages{
    "open", "read", "check", "decode", "resize", "convert", "write", "gather", "wait", "read_ahead"};

class alignas(64) StageCounters {
 public:
  struct Count {
    std::uint64_t nanoseconds, samples;
  };

  // Of the thread that these counters belong to at the moment: no other adds meanwhile.
  void add(Stage stage, std::uint64_t nanoseconds, std::uint64_t samples) noexcept {
    Counter& counter = counters_[static_cast<std::size_t>(stage)];
    counter.nanoseconds.store(counter.nanoseconds.load(std::memory_order_relaxed) + nanoseconds, std::memory_order_relaxed);
    counter.samples.store(counter.samples.load(std::memory_order_relaxed) + samples, std::memory_order_relaxed);
  }

  // The same for a sample whose time is added later.
  void add_sample(Stage stage) noexcept {
    Counter& counter = counters_[static_cast<std::size_t>(stage)];
    counter.samples.store(counter.samples.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  // Adds the counts of others; several threads may merge into the same counters at once.
  void merge(const StageCounters& others) noexcept {
    for (std::size_t i = 0; i < counters_.size(); ++i) {
      const Count count = others.count(static_cast<Stage>(i));
      counters_[i].nanoseconds.fetch_add(count.nanoseconds, std::memory_order_relaxed);
      counters_[i].samples.fetch_add(count.samples, std::memory_order_relaxed);
    }
  }

  [[nodiscard]] Count count(Stage stage) const noexcept {
    const Counter& counter = counters_[static_cast<std::size_t>(stage)];
    return {counter.nanoseconds.load(std::memory_order_relaxed), counter.samples.load(std::memory_order_relaxed)};
  }

 private:
  struct Counter {
    std::atomic<std::uint64_t> nanoseconds{0}, samples{0};
  };
  std::array<Counter, kStages.size()> counters_;
};

// Splits the time of one thread into stages. Without counters it does nothing and reads no clock.
class StageClock {
 public:
  explicit StageClock(StageCounters* counters) noexcept : counters_(counters) {
    for (std::size_t i = 0; counters != nullptr && i < timed_.size(); ++i)
      timed_[i] = counters->count(static_cast<Stage>(i)).samples;
  }

  // The time from here on is of the next stage.
  void start() noexcept {
    if (counters_ != nullptr) last_ = Clock::now();
  }

  // A sample has gone through this stage: the time since the last call is counted for it.
  void lap(Stage stage) noexcept {
    if (counters_ == nullptr) return;
    counters_->add(stage, elapsed(), 1);
    ++timed_[static_cast<std::size_t>(stage)];
  }

  // The same for a sample that is not worth a reading of the clock: its time is counted by flush().
  void defer(Stage stage) noexcept {
    if (counters_ != nullptr) counters_->add_sample(stage);
  }

  // Counts the time since the last call for the samples that were deferred, in equal parts.
  void flush() noexcept {
    if (counters_ == nullptr) return;
    std::array<std::uint64_t, kStages.size()> deferred{};
    for (std::size_t i = 0; i < deferred.size(); ++i)
      deferred[i] = counters_->count(static_cast<Stage>(i)).samples - timed_[i];
    const std::uint64_t samples = std::accumulate(deferred.begin(), deferred.end(), std::uint64_t{0});
    if (samples == 0) return;
    const double each = static_cast<double>(elapsed()) / static_cast<double>(samples);
    for (std::size_t i = 0; i < deferred.size(); ++i) {
      if (deferred[i] == 0) continue;
      counters_->add(static_cast<Stage>(i), static_cast<std::uint64_t>(each * static_cast<double>(deferred[i])), 0);
      timed_[i] += deferred[i];
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::uint64_t elapsed() noexcept {
    const Clock::time_point now = Clock::now();
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(now - last_).count();
    last_ = now;
    return static_cast<std::uint64_t>(nanoseconds);
  }

  StageCounters* counters_;
  Clock::time_point last_{};
  std::array<std::uint64_t, kStages.size()> timed_{};  // samples whose time is counted
};

}  // namespace penstock
