// What the loop over a loader's batches does with its time, added up batch by batch.
//
// Threads: any thread may call any method of a LoopCounter, at any time; a CallerClock belongs to one pass, whose calls
// Python's lock puts in turn. Memory: plain numbers; a CallerClock shares its LoopCounter.
#pragma once

#include <time.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

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

  // What passes in the caller's thread spent in one stage, in seconds. Of some of the work its CPU time was read too.
  struct Stage {
    double seconds = 0, looked = 0, cpu = 0;
    std::uint64_t samples = 0;

    // Returns the CPU time of all the work, by its share of the work that was looked at.
    [[nodiscard]] double cpu_seconds() const noexcept { return looked > 0 ? seconds * std::min(1.0, cpu / looked) : 0; }
  };

  // What passes in the caller's thread do: they read samples and collate them, or go through an iterable dataset.
  enum StageName : std::size_t { kRead, kCollate, kIterate, kStages };

  // What CallerClocks counted: batches and samples that were handed out, and the stages.
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

  // Such a pass worked in a stage.
  void add_stage(StageName name, const Stage& work) noexcept {
    const std::lock_guard hold(lock_);
    Stage& total = direct_.stages[name];
    total.seconds += work.seconds;
    total.looked += work.looked;
    total.cpu += work.cpu;
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

  mutable std::mutex lock_;
  Counts counts_;
  Direct direct_;
};

// The clock of one pass in the caller's thread. Its times are those of Python's time.perf_counter(), and no Python code
// reads a clock for a batch.
class CallerClock {
 public:
  // Counts into `counter`.
  explicit CallerClock(std::shared_ptr<LoopCounter> counter) noexcept
      : counter_(std::move(counter)), made_(counter_->direct().batches) {}

  // next() is called.
  void called() noexcept {
    looks_ = made_ % kEach == 0;
    called_ = now();
    if (looks_) called_cpu_ = thread_cpu();
  }

  // The samples of the batch are there.
  void read() noexcept {
    read_ = now();
    if (looks_) read_cpu_ = thread_cpu();
  }

  // The batch is made. `iterated`: all its time went through an iterable dataset; else it was read, then collated.
  void made(std::uint64_t samples, bool iterated) noexcept {
    samples_ = samples;
    end_ = now();
    const double cpu = looks_ ? thread_cpu() : 0;
    if (iterated) {
      add(LoopCounter::kIterate, end_ - called_, cpu - called_cpu_);
    } else {
      add(LoopCounter::kRead, read_ - called_, read_cpu_ - called_cpu_);
      add(LoopCounter::kCollate, end_ - read_, cpu - read_cpu_);
    }
    ++made_;
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
  // Of so many batches one is looked at for its CPU time, which takes some 300 ns to read.
  static constexpr std::uint64_t kEach = 16;

  void add(LoopCounter::StageName name, double seconds, double cpu) noexcept {
    counter_->add_stage(name, {seconds, looks_ ? seconds : 0, looks_ ? cpu : 0, samples_});
  }

  static double now() noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  static double thread_cpu() noexcept {
    timespec ran{};
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ran) == 0 ? double(ran.tv_sec) + 1e-9 * double(ran.tv_nsec) : 0;
  }

  const std::shared_ptr<LoopCounter> counter_;
  double called_ = 0, read_ = 0, end_ = 0, called_cpu_ = 0, read_cpu_ = 0, looked_ = 0;
  std::optional<double> left_;  // when the loop got its latest batch, or an error in its place
  std::uint64_t made_;          // batches, with those of the passes before
  std::uint64_t handed_ = 0, samples_ = 0;
  bool looks_ = false;
};

}  // namespace penstock
