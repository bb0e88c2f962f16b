// The pool: worker threads that fill batches, sample by sample.
//
// The batches in flight form one queue. A worker takes the next few samples of the oldest batch that has
// any left, so that all workers share one batch and none waits at its end; batches are finished in about
// the order in which they were submitted, and the caller waits for them by number.
//
// What a sample is, and how it is filled, only its Filler knows (tensor/filler.h). Files that do not lie in memory are
// brought by reader threads, ahead of the workers (read_ahead.h).
//
// Threads: submit, wait, take_python, run_here and the rest may be called from any thread; none of them
// needs Python's lock, and wait and take_python block. The destructor joins the workers; in a process that
// was forked off it does not touch them, because they do not exist there (see abandoned()).
// Memory: a Pool owns its threads, their Scratch, and the Batch objects in flight. A batch's rows, and the
// arrays that fillers borrow, belong to the caller and must outlive the batch's completion or the pool.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "files/path_table.h"
#include "files/stages.h"
#include "pool/read_ahead.h"
#include "pool/sleep_clock.h"
#include "pool/timeline.h"
#include "tensor/filler.h"

namespace penstock {

// Per source of the dataset: one filler a field. All sources have the same fields.
struct Program {
  using Fillers = std::vector<std::shared_ptr<const Filler>>;

  std::vector<Fillers> sources;
  std::size_t fields = 0;
};

// A sample that natively failed, or that Python must do.
struct Failure {
  std::uint32_t position;  // in the batch
  std::uint32_t field;
  Outcome outcome;
  TensorSpec got;  // for mismatch
};

struct FieldRows {
  std::uint8_t* data;
  std::size_t row_bytes;
  TensorSpec spec;
};

struct Batch : std::enable_shared_from_this<Batch> {
  std::uint64_t number = 0;
  PhiloxKey epoch{};                  // epoch_key(seed, epoch)
  std::vector<std::int64_t> local;    // per sample: index into its source
  std::vector<std::int64_t> sample;   // per sample: index into the dataset
  std::vector<std::int64_t> position;  // per sample: where it stands in the order of the epoch, of all ranks
  std::vector<std::int32_t> source;   // per sample; empty when there is one source
  std::shared_ptr<const PathTable> paths;  // per sample: its name; for sources without a table
  std::shared_ptr<ReadList> reads;    // its files, field by field; null: there are none, or no readers
  const void* program = nullptr;      // for which it was prepared
  bool submitted = false;
  std::vector<FieldRows> fields;
  std::vector<std::uint8_t> staged;  // copies of samples in memory, see Filler::stage; empty: there are none
  std::size_t staged_bytes = 0;      // of each sample and field

  [[nodiscard]] std::uint8_t* staged_sample(std::uint32_t place, std::uint32_t field) noexcept {
    return staged.data() + (place * fields.size() + field) * staged_bytes;
  }

  std::atomic<std::uint32_t> next{0};
  std::atomic<std::uint32_t> unfinished{0};  // samples not yet done by anybody, Python included
  std::mutex failures_lock;
  std::vector<Failure> failures;
};

// A row for Python: a format that the native core leaves to Pillow, torch.load or numpy.
struct PythonJob {
  std::shared_ptr<Batch> batch;
  std::uint32_t position;
  std::uint32_t field;
  const char* reason;
};

// A sample that a worker is busy with.
struct Busy {
  std::uint64_t batch;
  std::uint32_t position;
  double seconds;  // since the worker took it, or the few samples that it took at once
};

// What one worker does now, and has done; written by that worker only, read by anybody, without a lock.
class alignas(64) Worker {  // its own cache lines
 public:
  using Clock = std::chrono::steady_clock;

  StageCounters stages;
  SleepMeter sleeps;  // of the worker only
  std::unique_ptr<Timeline> timeline;  // null: nobody records

  // `since` is 0 while the other value changes: a reader that sees one `since` before and after has a pair.
  void begin(std::uint64_t batch, std::uint32_t position) {
    since_.store(0, std::memory_order_relaxed);
    at(batch, position);
    since_.store(Clock::now().time_since_epoch().count(), std::memory_order_release);
  }
  // Goes on to a sample that was taken together with the one before.
  void at(std::uint64_t batch, std::uint32_t position) {
    sample_.store(batch << 32 | position, std::memory_order_release);
  }
  void rest() { since_.store(0, std::memory_order_release); }

  // False: it rests, or goes from one sample to the next just now. Of the batch's number the lower 32 bits.
  [[nodiscard]] bool look(std::uint32_t& batch, std::uint32_t& position, double& seconds) const;

 private:
  std::atomic<Clock::rep> since_{0};
  std::atomic<std::uint64_t> sample_{0};
};

enum class Wait : std::uint8_t { done, timeout, python_needed, closed };

class Pool {
 public:
  // At most `readers` reader threads, which hold so many bytes ahead. recorded: each worker keeps a Timeline.
  Pool(std::shared_ptr<const Program> program, unsigned threads, unsigned readers, std::uint64_t ahead_bytes,
       bool recorded = false);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();

  // Lets readers know of a batch that is yet to be submitted: it lacks its fields only. A batch that is released instead
  // of being submitted is forgotten.
  void prepare(const std::shared_ptr<Batch>& batch);

  // Queues a batch, which was prepared; its number is returned. With no threads it is filled by run_here().
  // staged: samples in memory are copied here, where they can be (Filler::stage), and their rows made from the copies.
  std::uint64_t submit(std::shared_ptr<Batch> batch, bool staged = false);

  // Fills what is left of a batch in the calling thread; workers do too.
  void run_here(std::uint64_t number);

  // Waits for a batch; one of a few samples in memory it fills itself. python_needed: rows wait for Python and no
  // Python thread serves them.
  Wait wait(std::uint64_t number, std::chrono::nanoseconds timeout);
  // Whether wait() would not wait: at the most it fills the batch itself.
  [[nodiscard]] bool at_hand(std::uint64_t number);

  // Hands the finished batch over and forgets it.
  std::shared_ptr<Batch> retire(std::uint64_t number);

  // The next row for Python. With block it waits until there is one or the pool closes. Empty: there is none.
  std::optional<PythonJob> take_python(bool block);
  // A thread calls this once before it serves rows by take_python(true), and wait() relies on it.
  void add_python_server();
  void finish_python(const PythonJob& job, const Outcome& outcome, const TensorSpec& got);

  // Fills the row of a job from pixels that Python decoded, in the calling thread.
  Outcome fill_from_pixels(const PythonJob& job, const DecodedImage& image, TensorSpec& got);

  // The samples that workers, and run_here, are busy with at this moment.
  [[nodiscard]] std::vector<Busy> busy();

  // The time that all threads together spent in a stage since the pool was made, and the samples that they brought
  // through it. Waits for nothing; what a thread counts meanwhile may be in it or not.
  [[nodiscard]] StageCounters::Count stage(Stage stage) const;

  // What each reader and worker did since the last call, the callers of run_here and wait last, as one; one thread at a
  // time may call it.
  [[nodiscard]] std::vector<ThreadSpans> take_spans();

  // For benchmarks: whether the threads of pools that are made from now on count what each stage takes.
  static void count_stages(bool enabled) noexcept { counts_stages_.store(enabled, std::memory_order_relaxed); }

  // For tests: starts readers, whether or not reads block.
  void start_readers() { readers_.start(); }

  [[nodiscard]] unsigned read_depth() const noexcept { return readers_.depth(); }
  [[nodiscard]] ReadCounts read_counts() const { return readers_.counts(); }
  // A token that is expired once no reader thread uses the program any more: after the destructor only readers hold it
  // that do not come back from a read.
  [[nodiscard]] std::weak_ptr<const void> readers() const { return readers_.busy(); }

  // Stops and joins the workers, and wakes everybody who waits.
  void close();

  // True in a process forked off from the one that made the pool: its threads are not here.
  [[nodiscard]] bool abandoned() const;

 private:
  using Fillers = Program::Fillers;

  void work(unsigned number);
  [[nodiscard]] bool one_grain(const Batch& batch) const;
  void fill_here(const std::shared_ptr<Batch>& batch);
  void fill(Batch& batch, Scratch& scratch, unsigned number);
  std::uint32_t fill_some(Batch& batch, Scratch& scratch, Worker& worker);
  [[nodiscard]] const Fillers& fillers_of(const Batch& batch, std::uint32_t position) const;
  void stage(Batch& batch);
  void fill_sample(Batch& batch, std::uint32_t position, Scratch& scratch);
  void fill_metered(Batch& batch, std::uint32_t position, Scratch& scratch, Worker& worker);
  void push_python(Batch& batch, const Failure& failure);
  void finish(Batch& batch, std::uint32_t samples);

  [[nodiscard]] StageCounters* counters_of(unsigned number) const noexcept {
    return counts_stages_.load(std::memory_order_relaxed) ? &states_[number].stages : nullptr;
  }

  static inline std::atomic<bool> counts_stages_{true};

  const std::shared_ptr<const Program> program_;
  const unsigned thread_count_;
  const pid_t process_;
  std::uint32_t grain_;  // samples a worker takes at a time
  const bool in_memory_;  // fillers read memory that is not ours: while the caller waits, unless it was staged

  std::mutex lock_;
  std::condition_variable work_;    // for workers
  std::condition_variable done_;    // for wait()
  std::condition_variable python_;  // for Python's threads
  std::deque<std::shared_ptr<Batch>> open_;  // batches that may have samples left to take
  std::unordered_map<std::uint64_t, std::shared_ptr<Batch>> in_flight_;
  std::deque<PythonJob> python_jobs_;
  std::vector<std::vector<std::uint8_t>> spare_;  // memory for Batch::staged
  std::uint64_t next_number_ = 0;
  unsigned python_servers_ = 0;
  bool closed_ = false;             // under lock_
  std::atomic<bool> stop_{false};   // the same for workers inside a batch
  std::mutex own_lock_;                   // held by run_here
  std::unique_ptr<Scratch> own_scratch_;  // of run_here
  const std::unique_ptr<Worker[]> states_;  // one a thread, and the last one of run_here
  StageCounters python_stages_;  // of fill_from_pixels
  const bool has_readers_;
  ReadAhead readers_;
  std::vector<std::thread> workers_;
};

}  // namespace penstock
