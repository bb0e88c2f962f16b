// How long a thread worked at each stage of its samples, how much of that it ran on a processor, and how many samples
// and bytes each stage had.
//
// A reading of the clock costs about 25 ns. A file's sample reads it once a stage, which no open() or
// decoder notices; samples in memory, which cost little more than such a reading, are counted one by one and timed a
// batch at a time. Where that time goes, which takes calls of the system, is read of one sample, or of one batch of
// samples in memory, in 20 ms: its shares are taken for those of all.
//
// Threads: StageCounters are written by one thread at a time and read by any, at any time, without a lock; merge() may
// be called by any thread. A StageClock belongs to one thread. Memory: plain numbers; counters fill cache lines of
// their own, and a StageClock borrows those that it writes to.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <utility>

#include "files/thread_clock.h"

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
    std::uint64_t nanoseconds = 0, samples = 0, bytes = 0;
    std::uint64_t metered = 0, running = 0, ready = 0;  // nanoseconds of the metered samples; on, and for, a processor

    Count& operator+=(const Count& other) noexcept {
      nanoseconds += other.nanoseconds, samples += other.samples, bytes += other.bytes;
      metered += other.metered, running += other.running, ready += other.ready;
      return *this;
    }

    // The seconds on a processor, about; all of the time where no sample was metered.
    [[nodiscard]] double running_seconds() const noexcept {
      const double share = metered == 0 ? 1 : std::min(1.0, static_cast<double>(running) / static_cast<double>(metered));
      return static_cast<double>(nanoseconds) / 1e9 * share;
    }

    // The seconds in which it was ready to run and no processor was free, about.
    [[nodiscard]] double ready_seconds() const noexcept {
      return metered == 0 ? 0 : static_cast<double>(nanoseconds) / 1e9 * static_cast<double>(ready) / static_cast<double>(metered);
    }
  };

  // Of the thread that these counters belong to at the moment: no other adds meanwhile.
  void add(Stage stage, std::uint64_t nanoseconds, std::uint64_t samples) noexcept {
    Counter& counter = counters_[static_cast<std::size_t>(stage)];
    increase(counter.nanoseconds, nanoseconds);
    increase(counter.samples, samples);
  }

  // The same for what was metered of this time.
  void add_metered(Stage stage, std::uint64_t nanoseconds, std::uint64_t running, std::uint64_t ready) noexcept {
    Counter& counter = counters_[static_cast<std::size_t>(stage)];
    increase(counter.metered, nanoseconds);
    increase(counter.running, running);
    increase(counter.ready, ready);
  }

  // The same for the bytes of a sample.
  void add_bytes(Stage stage, std::uint64_t bytes) noexcept { increase(counters_[static_cast<std::size_t>(stage)].bytes, bytes); }

  // The same for a sample whose time is added later.
  void add_sample(Stage stage) noexcept {
    increase(counters_[static_cast<std::size_t>(stage)].samples, 1);
  }

  // Adds the counts of others; several threads may merge into the same counters at once.
  void merge(const StageCounters& others) noexcept {
    for (std::size_t i = 0; i < counters_.size(); ++i) {
      const Count count = others.count(static_cast<Stage>(i));
      counters_[i].nanoseconds.fetch_add(count.nanoseconds, std::memory_order_relaxed);
      counters_[i].samples.fetch_add(count.samples, std::memory_order_relaxed);
      counters_[i].bytes.fetch_add(count.bytes, std::memory_order_relaxed);
      counters_[i].metered.fetch_add(count.metered, std::memory_order_relaxed);
      counters_[i].running.fetch_add(count.running, std::memory_order_relaxed);
      counters_[i].ready.fetch_add(count.ready, std::memory_order_relaxed);
    }
  }

  [[nodiscard]] Count count(Stage stage) const noexcept {
    const Counter& counter = counters_[static_cast<std::size_t>(stage)];
    return {counter.nanoseconds.load(std::memory_order_relaxed), counter.samples.load(std::memory_order_relaxed),
            counter.bytes.load(std::memory_order_relaxed), counter.metered.load(std::memory_order_relaxed),
            counter.running.load(std::memory_order_relaxed), counter.ready.load(std::memory_order_relaxed)};
  }

 private:
  using Number = std::atomic<std::uint64_t>;
  struct Counter {
    Number nanoseconds{0}, samples{0}, bytes{0}, metered{0}, running{0}, ready{0};
  };

  static void increase(Number& number, std::uint64_t by) noexcept {
    number.store(number.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }

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
    if (counters_ == nullptr) return;
    last_ = now();
    meter();
  }

  // A sample begins, whose stages call lap().
  void begin_sample() noexcept {
    if (counters_ == nullptr) return;
    meter();
  }

  // A sample has passed this stage: the time since the last call is counted for it.
  void lap(Stage stage) noexcept {
    if (counters_ == nullptr) return;
    const std::uint64_t nanoseconds = elapsed();
    counters_->add(stage, nanoseconds, 1);
    ++timed_[static_cast<std::size_t>(stage)];
    if (!metered_) return;
    const ThreadClock::Lap spent = thread_.lap(nanoseconds);
    counters_->add_metered(stage, nanoseconds, spent.running, spent.ready);
  }

  // So many bytes were read from a file at this stage.
  void add_bytes(Stage stage, std::uint64_t bytes) noexcept {
    if (counters_ != nullptr) counters_->add_bytes(stage, bytes);
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
    const std::uint64_t whole = elapsed();
    const double each = static_cast<double>(whole) / static_cast<double>(samples);
    const ThreadClock::Lap spent = metered_ ? thread_.lap(whole) : ThreadClock::Lap{};
    for (std::size_t i = 0; i < deferred.size(); ++i) {
      if (deferred[i] == 0) continue;
      const auto count = static_cast<double>(deferred[i]);
      const auto nanoseconds = static_cast<std::uint64_t>(each * count);
      counters_->add(static_cast<Stage>(i), nanoseconds, 0);
      if (metered_) {
        const double share = count / static_cast<double>(samples);
        counters_->add_metered(static_cast<Stage>(i), nanoseconds,
                               static_cast<std::uint64_t>(static_cast<double>(spent.running) * share),
                               static_cast<std::uint64_t>(static_cast<double>(spent.ready) * share));
      }
      timed_[i] += deferred[i];
    }
  }

 private:
  std::uint64_t elapsed() noexcept {
    const std::uint64_t before = std::exchange(last_, now());
    return last_ - before;
  }

  static std::uint64_t now() noexcept {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::nanoseconds(since).count());
  }

  // What begins now is metered, where the last that was lies so many nanoseconds back.
  void meter() noexcept {
    metered_ = last_ >= next_;
    if (!metered_) return;
    next_ = last_ + kEach;
    thread_.start();
  }

  static constexpr std::uint64_t kEach = 20'000'000;

  StageCounters* counters_;
  std::uint64_t last_ = 0, next_ = 0;
  ThreadClock thread_;
  bool metered_ = false;
  std::array<std::uint64_t, kStages.size()> timed_{};  // samples whose time is counted
};

}  // namespace penstock
