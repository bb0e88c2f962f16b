// What the loop over a loader's batches does with its time, added up batch by batch.
//
// Threads: any thread may call any method of a LoopCounter, at any time; a CallerClock belongs to one pass, whose calls
// Python's lock puts in turn. Memory: plain numbers; a CallerClock shares its LoopCounter.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "files/thread_clock.h"

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

  // What passes in the caller's thread spent in one stage, in seconds. Some of the work was looked at more closely.
  struct Stage {
    double seconds = 0, looked = 0;
    ThreadClock::Lap spent;  // of what was looked at
    std::uint64_t samples = 0;

    // Returns what all the work came to, by its share of the work that was looked at.
    [[nodiscard]] double of_all(std::uint64_t part) const noexcept {
      return looked > 0 ? seconds / looked * static_cast<double>(part) : 0;
    }
  };

  // What passes in the caller's thread do: they read samples and collate them, or go through an iterable dataset. Of
  // all passes: batches are moved to a device.
  enum StageName : std::size_t { kRead, kCollate, kIterate, kCopy, kStages };

  // Batches and samples that passes handed out, and the stages that CallerClocks counted.
  struct Direct {
    std::uint64_t batches = 0, samples = 0;
    std::array<Stage, kStages> stages;
  };

  // A batch was waited for; `worked`: between the batch before and the call for this one, none for the first of a pass.
  void add(double waited, std::optional<double> worked, std::uint64_t in_flight) noexcept {
    const std::lock_guard hold(lock_);
    add_locked(waited, worked, in_flight);
  }

  // The same of a batch of so many samples that a pass in the caller's thread hands out.
  void add_direct(double waited, std::optional<double> worked, std::uint64_t samples) noexcept {
    const std::lock_guard hold(lock_);
    ++direct_.batches;
    direct_.samples += samples;
    add_locked(waited, worked, 0);
  }

  // A batch of so many samples is handed out, whose times `add` counts.
  void hand_out(std::uint64_t samples) noexcept {
    const std::lock_guard hold(lock_);
    ++direct_.batches;
    direct_.samples += samples;
  }

  // A pass in the caller's thread worked in a stage.
  void add_stage(StageName name, const Stage& work) noexcept {
    const std::lock_guard hold(lock_);
    Stage& total = direct_.stages[name];
    total.seconds += work.seconds;
    total.looked += work.looked;
    total.spent.running += work.spent.running, total.spent.ready += work.spent.ready;
    total.spent.bytes += work.spent.bytes;
    total.samples += work.samples;
  }

  // The loop worked on the last batch of its pass.
  void add_work(double seconds) noexcept {
    const std::lock_guard hold(lock_);
    counts_.worked += seconds;
  }

  // Returns whether the samples of these passes are read in less than so many seconds each.
  [[nodiscard]] bool light(double seconds) const noexcept {
    const std::lock_guard hold(lock_);
    const Stage &read = direct_.stages[kRead], &iterated = direct_.stages[kIterate];
    const double taken = read.seconds + iterated.seconds;
    return 0 < taken && taken < seconds * static_cast<double>(read.samples + iterated.samples);
  }

  // Returns whether the batch that is begun at this time, in seconds, is to be looked at: one in kEach seconds.
  bool looks(double now) noexcept {
    if (now < next_look_.load(std::memory_order_relaxed)) return false;
    next_look_.store(now + kEach, std::memory_order_relaxed);
    return true;
  }

  // Returns the time in seconds, as Python's time.perf_counter() has it.
  static double now() noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  [[nodiscard]] Counts counts() const noexcept {
    const std::lock_guard hold(lock_);
    return counts_;
  }

  [[nodiscard]] Direct direct() const noexcept {
    const std::lock_guard hold(lock_);
    return direct_;
  }

 private:
  void add_locked(double waited, std::optional<double> worked, std::uint64_t in_flight) noexcept {
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

  // Where the time of a batch goes takes up to 30 us to read: a loader that is gone within kFirst seconds pays nothing.
  static constexpr double kEach = 0.02, kFirst = 0.01;

  mutable std::mutex lock_;
  std::atomic<double> next_look_{now() + kFirst};
  Counts counts_;
  Direct direct_;
};

// Counts one piece of work of one stage; belongs to the thread that does it.
class WorkClock {
 public:
  // The work begins now.
  WorkClock(std::shared_ptr<LoopCounter> counter, LoopCounter::StageName name) noexcept
      : counter_(std::move(counter)), name_(name), begun_(LoopCounter::now()), looks_(counter_->looks(begun_)) {
    if (looks_) thread_.start();
  }

  // The work on so many samples is done. Returns its seconds.
  double end(std::uint64_t samples) noexcept {
    const double seconds = LoopCounter::now() - begun_;
    const ThreadClock::Lap spent = looks_ ? thread_.lap(static_cast<std::uint64_t>(1e9 * seconds)) : ThreadClock::Lap{};
    counter_->add_stage(name_, {seconds, looks_ ? seconds : 0, spent, samples});
    return seconds;
  }

  // When it began, in seconds.
  [[nodiscard]] double begun() const noexcept { return begun_; }

 private:
  const std::shared_ptr<LoopCounter> counter_;
  const LoopCounter::StageName name_;
  const double begun_;
  const bool looks_;
  ThreadClock thread_;
};

// The clock of one pass in the caller's thread. Its times are those of Python's time.perf_counter(), and no Python code
// reads a clock for a batch.
class CallerClock {
 public:
  // Counts into `counter`.
  explicit CallerClock(std::shared_ptr<LoopCounter> counter) noexcept : counter_(std::move(counter)) {}

  // next() is called.
  void called() noexcept {
    called_ = now();
    looks_ = counter_->looks(called_);
    if (looks_) thread_.start();
  }

  // The samples of the batch are there.
  void read() noexcept {
    read_ = now();
    if (looks_) reading_ = spent(read_ - called_);
  }

  // The batch is made. `iterated`: all its time went through an iterable dataset; else it was read, then collated.
  void made(std::uint64_t samples, bool iterated) noexcept {
    samples_ = samples;
    end_ = now();
    if (iterated) {
      add(LoopCounter::kIterate, end_ - called_, spent(end_ - called_));
    } else {
      add(LoopCounter::kRead, read_ - called_, reading_);
      add(LoopCounter::kCollate, end_ - read_, spent(end_ - read_));
    }
  }

  // Batch `number` of the pass, from 1 on, is handed out: a second call for the same batch counts nothing. Returns
  // whether CPU times are due: `every` so many seconds, and at the first batch of a pass where they were last `looked`
  // at more than `brief` seconds ago.
  bool handed(std::uint64_t number, double every, double looked, double brief) noexcept {
    if (number == handed_) return false;
    handed_ = number;
    const double here = now();
    counter_->add_direct(here - called_, left_ ? std::optional(called_ - *left_) : std::nullopt, samples_);
    const bool first = !left_;
    const bool due = first ? here - looked > brief : here - looked_ > every;
    left_ = here;
    if (due || first) looked_ = here;
    return due;
  }

  // An error came in the place of a batch.
  void failed() noexcept { left_ = now(); }

  // The pass is at its end: what came since the last batch was the loop's work. Returns whether a batch came.
  bool ended() noexcept {
    if (!left_) return false;
    counter_->add_work(std::max(0.0, called_ - *left_));
    left_.reset();
    return true;
  }

  // Returns when next() was called, when the samples were there and when the batch was made.
  [[nodiscard]] std::array<double, 3> moments() const noexcept { return {called_, read_, end_}; }
  [[nodiscard]] std::uint64_t samples() const noexcept { return samples_; }

 private:
  void add(LoopCounter::StageName name, double seconds, ThreadClock::Lap spent) noexcept {
    counter_->add_stage(name, {seconds, looks_ ? seconds : 0, spent, samples_});
  }

  // Returns where so many seconds up to now went, of a batch that is looked at.
  ThreadClock::Lap spent(double seconds) noexcept {
    return looks_ ? thread_.lap(static_cast<std::uint64_t>(1e9 * seconds)) : ThreadClock::Lap{};
  }

  static double now() noexcept { return LoopCounter::now(); }

  const std::shared_ptr<LoopCounter> counter_;
  ThreadClock thread_;
  ThreadClock::Lap reading_;
  double called_ = 0, read_ = 0, end_ = 0, looked_ = 0;
  std::optional<double> left_;  // when the loop got its latest batch, or an error in its place
  std::uint64_t handed_ = 0, samples_ = 0;
  bool looks_ = false;
};

}  // namespace penstock
