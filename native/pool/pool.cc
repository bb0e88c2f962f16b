#include "pool/pool.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>

#include "pool/block_signals.h"

namespace penstock {
namespace {

// Samples in memory cost well under a microsecond each: a worker takes this many bytes' worth at a time,
// so that the shared counter is touched seldom and neighbouring rows are written by one core.
constexpr std::size_t kBytesPerGrain = 64 * 1024;
constexpr std::uint32_t kMaxGrain = 64;

std::uint32_t choose_grain(const Program& program) {
  std::size_t bytes = 0;
  for (const auto& source : program.sources) {
    std::size_t total = 0;
    for (const auto& filler : source) {
      if (filler->memory_bytes() == 0) return 1;  // a file: one system call costs more than the counter
      total += filler->memory_bytes();
    }
    bytes = std::max(bytes, total);
  }
  if (bytes == 0) return 1;
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(kBytesPerGrain / bytes, 1, kMaxGrain));
}

bool reads_memory(const Program& program) {
  for (const auto& source : program.sources)
    for (const auto& filler : source)
      if (filler->memory_bytes() > 0) return true;
  return false;
}

bool reads_files(const Program& program) {
  for (const auto& source : program.sources)
    for (const auto& filler : source)
      if (filler->memory_bytes() == 0) return true;
  return false;
}

SampleKey key_of(const Batch& batch, std::uint32_t position) {
  return {static_cast<std::size_t>(batch.local[position]), static_cast<std::uint64_t>(batch.sample[position]),
          static_cast<std::uint64_t>(batch.position[position]), batch.epoch, position};
}

}  // namespace

Pool::Pool(std::shared_ptr<const Program> program, unsigned threads, unsigned readers, std::uint64_t ahead_bytes,
           bool recorded)
    : program_(std::move(program)),
      thread_count_(threads),
      process_(getpid()),
      grain_(choose_grain(*program_)),
      in_memory_(reads_memory(*program_)),
      states_(std::make_unique<Worker[]>(std::size_t{threads} + 1)),
      has_readers_(readers > 0 && reads_files(*program_)),
      readers_(has_readers_ ? readers : 0, ahead_bytes, recorded) {
  for (unsigned i = 0; recorded && i <= threads; ++i) states_[i].timeline = std::make_unique<Timeline>();
  const BlockSignals blocked;  // new threads inherit the mask
  workers_.reserve(threads);
  try {
    for (unsigned i = 0; i < threads; ++i) {
      workers_.emplace_back([this, i] { work(i); });
      pthread_setname_np(workers_.back().native_handle(), "penstock");
    }
  } catch (...) {  // the system has no more threads: none may outlive this constructor
    close();
    throw;
  }
}

bool Worker::look(std::uint32_t& batch, std::uint32_t& position, double& seconds) const {
  const Clock::rep since = since_.load(std::memory_order_acquire);
  const std::uint64_t sample = sample_.load(std::memory_order_acquire);
  if (since == 0 || since_.load(std::memory_order_acquire) != since) return false;
  batch = static_cast<std::uint32_t>(sample >> 32);
  position = static_cast<std::uint32_t>(sample);
  seconds = std::chrono::duration<double>(Clock::now().time_since_epoch() - Clock::duration(since)).count();
  return true;
}

Pool::~Pool() { close(); }

bool Pool::abandoned() const { return getpid() != process_; }

void Pool::close() {
  if (abandoned()) {
    // The locks may have been held at the fork and the threads do not exist here: forget them untouched.
    for (auto& worker : workers_) worker.detach();
    workers_.clear();
    return;
  }
  {
    const std::lock_guard hold(lock_);
    closed_ = true;
    stop_.store(true, std::memory_order_relaxed);
  }
  work_.notify_all();
  done_.notify_all();
  python_.notify_all();
  readers_.close();  // first: workers wait for them
  for (auto& worker : workers_) worker.join();
  workers_.clear();
}

void Pool::prepare(const std::shared_ptr<Batch>& batch) {
  if (!has_readers_) return;
  std::vector<FileLocation> files;
  files.reserve(batch->local.size() * program_->fields);
  for (std::uint32_t position = 0; position < batch->local.size(); ++position)
    for (const auto& filler : fillers_of(*batch, position))
      files.push_back(filler->locate(key_of(*batch, position), batch->paths.get()));
  batch->reads = std::make_shared<ReadList>(std::move(files));
  batch->reads->names = batch->paths;
  readers_.add(batch->reads);
}

std::uint64_t Pool::submit(std::shared_ptr<Batch> batch, bool staged) {
  const auto size = static_cast<std::uint32_t>(batch->local.size());
  if (staged) stage(*batch);
  batch->unfinished.store(size, std::memory_order_relaxed);
  const bool wakes = !one_grain(*batch);
  std::uint64_t number;
  {
    const std::lock_guard hold(lock_);
    number = next_number_++;
    batch->number = number;
    in_flight_.emplace(number, batch);
    if (size > 0) open_.push_back(std::move(batch));
  }
  if (wakes) work_.notify_all();
  return number;
}

// Copies what the batch's samples have in memory, whose owner may move it before workers come to them.
void Pool::stage(Batch& batch) {
  for (const auto& source : program_->sources)
    for (const auto& filler : source) batch.staged_bytes = std::max(batch.staged_bytes, filler->staged_bytes());
  const std::size_t fields = program_->fields;
  if (batch.staged_bytes == 0) return;
  {
    const std::lock_guard hold(lock_);
    if (!spare_.empty()) batch.staged = std::move(spare_.back()), spare_.pop_back();
  }
  const std::size_t bytes = batch.local.size() * fields * batch.staged_bytes;
  if (batch.staged.size() < bytes) batch.staged.resize(bytes);
  for (std::uint32_t position = 0; position < batch.local.size(); ++position) {
    const Fillers& fillers = fillers_of(batch, position);
    for (std::uint32_t field = 0; field < fields; ++field)
      if (fillers[field]->staged_bytes() > 0)
        fillers[field]->stage(static_cast<std::size_t>(batch.local[position]), batch.staged_sample(position, field));
  }
}

// To wake a worker costs more than to copy a grain: whoever waits for such a batch fills it, unless a worker that is
// awake has done so.
bool Pool::one_grain(const Batch& batch) const { return in_memory_ && batch.local.size() <= grain_; }

void Pool::work(unsigned number) {
  Scratch scratch(counters_of(number));
  while (true) {
    std::shared_ptr<Batch> batch;
    {
      std::unique_lock hold(lock_);
      work_.wait(hold, [&] { return closed_ || !open_.empty(); });
      if (closed_) return;
      batch = open_.front();
    }
    fill(*batch, scratch, number);
    const std::lock_guard hold(lock_);
    if (!open_.empty() && open_.front() == batch) open_.pop_front();
    if (closed_) return;
  }
}

void Pool::run_here(std::uint64_t number) {
  std::shared_ptr<Batch> batch;
  {
    const std::lock_guard hold(lock_);
    batch = in_flight_.at(number);
  }
  fill_here(batch);
}

void Pool::fill_here(const std::shared_ptr<Batch>& batch) {
  const std::lock_guard one_at_a_time(own_lock_);
  {
    const std::lock_guard hold(lock_);
    if (!own_scratch_) own_scratch_ = std::make_unique<Scratch>(counters_of(thread_count_));
    if (thread_count_ == 0 || one_grain(*batch)) std::erase(open_, batch);  // else workers fill it too
  }
  fill(*batch, *own_scratch_, thread_count_);
}

// Fills samples of the batch for as long as it has any left to take.
void Pool::fill(Batch& batch, Scratch& scratch, unsigned number) {
  Worker& worker = states_[number];
  if (worker.timeline) worker.timeline->begin(worker.stages);
  scratch.clock.start();
  std::uint32_t samples = 0;
  while (const std::uint32_t some = fill_some(batch, scratch, worker)) samples += some;
  scratch.clock.flush();
  worker.rest();
  if (worker.timeline && samples > 0) worker.timeline->end(worker.stages, samples);
}

// Takes the next samples of the batch, fills them and returns how many they are; 0: there were none left to take.
std::uint32_t Pool::fill_some(Batch& batch, Scratch& scratch, Worker& worker) {
  if (stop_.load(std::memory_order_relaxed)) return 0;
  const auto size = static_cast<std::uint32_t>(batch.local.size());
  const std::uint32_t begin = batch.next.fetch_add(grain_, std::memory_order_relaxed);
  if (begin >= size) return 0;
  const std::uint32_t end = std::min(size, begin + grain_);
  worker.begin(batch.number, begin);
  const auto fill = [&](std::uint32_t position) {
    if (position + 1 < end) {
      const auto ahead = position + 1;
      for (const auto& filler : fillers_of(batch, ahead)) filler->prefetch(static_cast<std::size_t>(batch.local[ahead]));
    }
    worker.at(batch.number, position);
    fill_metered(batch, position, scratch, worker);
  };
  for (std::uint32_t position = begin; position < end; ++position) fill(position);
  scratch.trim();
  finish(batch, end - begin);
  return end - begin;
}

const Pool::Fillers& Pool::fillers_of(const Batch& batch, std::uint32_t position) const {
  return program_->sources[batch.source.empty() ? 0 : static_cast<std::size_t>(batch.source[position])];
}

// Fills a sample, and sees at some of them whether the worker sleeps for its files.
void Pool::fill_metered(Batch& batch, std::uint32_t position, Scratch& scratch, Worker& worker) {
  if (!in_memory_) scratch.clock.begin_sample();  // rows in memory are timed a batch at a time
  const bool metered = batch.reads != nullptr && readers_.depth() == 0 && worker.sleeps.begin();
  fill_sample(batch, position, scratch);
  if (!metered) return;
  double seconds = 0;
  const double asleep = worker.sleeps.end(seconds);
  readers_.observe(seconds, asleep);
}

void Pool::fill_sample(Batch& batch, std::uint32_t position, Scratch& scratch) {
  const SampleKey key = key_of(batch, position);
  const Fillers& fillers = fillers_of(batch, position);
  for (std::uint32_t field = 0; field < fillers.size(); ++field) {
    const FieldRows& rows = batch.fields[field];
    Failure failure{position, field, {}, {}};
    if (batch.reads) scratch.brought = readers_.take(*batch.reads, position * fillers.size() + field, scratch.clock);
    scratch.staged = !batch.staged.empty() && fillers[field]->staged_bytes() > 0 ? batch.staged_sample(position, field) : nullptr;
    failure.outcome = fillers[field]->fill(key, batch.paths.get(), rows.spec, rows.data + rows.row_bytes * position,
                                           failure.got, scratch);
    scratch.brought.reset();
    if (failure.outcome.ok()) continue;
    if (failure.outcome.code == Code::python) {
      push_python(batch, failure);
    } else {
      const std::lock_guard hold(batch.failures_lock);
      batch.failures.push_back(failure);
    }
  }
}

void Pool::push_python(Batch& batch, const Failure& failure) {
  batch.unfinished.fetch_add(1, std::memory_order_relaxed);
  {
    const std::lock_guard hold(lock_);
    python_jobs_.push_back({batch.shared_from_this(), failure.position, failure.field, failure.outcome.reason});
  }
  python_.notify_one();
  done_.notify_all();  // wait() tells the caller that Python is needed
}

void Pool::finish(Batch& batch, std::uint32_t samples) {
  if (batch.unfinished.fetch_sub(samples, std::memory_order_acq_rel) != samples) return;
  {
    const std::lock_guard hold(lock_);  // orders the store before the waiter's test
  }
  done_.notify_all();
}

Wait Pool::wait(std::uint64_t number, std::chrono::nanoseconds timeout) {
  std::unique_lock hold(lock_);
  const auto found = in_flight_.find(number);
  if (found == in_flight_.end()) return Wait::closed;
  const std::shared_ptr<Batch> batch = found->second;
  const auto finished = [&] { return batch->unfinished.load(std::memory_order_acquire) == 0; };
  if (one_grain(*batch) && !finished() && !closed_) {
    hold.unlock();
    fill_here(batch);
    hold.lock();
  }
  const auto stranded = [&] { return python_servers_ == 0 && !python_jobs_.empty(); };
  done_.wait_for(hold, timeout, [&] { return finished() || closed_ || stranded(); });
  if (finished()) return Wait::done;
  if (closed_) return Wait::closed;
  return stranded() ? Wait::python_needed : Wait::timeout;
}

bool Pool::at_hand(std::uint64_t number) {
  const std::lock_guard hold(lock_);
  const auto found = in_flight_.find(number);
  if (found == in_flight_.end() || closed_ || (python_servers_ == 0 && !python_jobs_.empty())) return true;
  return one_grain(*found->second) || found->second->unfinished.load(std::memory_order_acquire) == 0;
}

std::shared_ptr<Batch> Pool::retire(std::uint64_t number) {
  const std::lock_guard hold(lock_);
  auto node = in_flight_.extract(number);
  if (node && !node.mapped()->staged.empty()) spare_.push_back(std::move(node.mapped()->staged));
  return node ? std::move(node.mapped()) : nullptr;
}

std::vector<Busy> Pool::busy() {
  std::vector<Busy> found;
  const std::lock_guard hold(lock_);
  for (std::size_t i = 0; i <= thread_count_; ++i) {
    std::uint32_t batch = 0, position = 0;
    double seconds = 0;
    if (!states_[i].look(batch, position, seconds)) continue;
    // The last batch before the next one whose number ends in these bits.
    const auto back = static_cast<std::uint32_t>(next_number_) - batch;
    found.push_back({next_number_ - back, position, seconds});
  }
  return found;
}

std::vector<ThreadSpans> Pool::take_spans() {
  std::vector<ThreadSpans> taken = readers_.take_spans();
  for (unsigned i = 0; i <= thread_count_ && states_[i].timeline; ++i)
    taken.push_back({i < thread_count_ ? ThreadSpans::worker : ThreadSpans::caller, i, states_[i].timeline->take()});
  return taken;
}

std::optional<PythonJob> Pool::take_python(bool block) {
  std::unique_lock hold(lock_);
  if (block) python_.wait(hold, [this] { return closed_ || !python_jobs_.empty(); });
  if (closed_ || python_jobs_.empty()) return std::nullopt;
  PythonJob job = std::move(python_jobs_.front());
  python_jobs_.pop_front();
  return job;
}

void Pool::add_python_server() {
  const std::lock_guard hold(lock_);
  ++python_servers_;
}

void Pool::finish_python(const PythonJob& job, const Outcome& outcome, const TensorSpec& got) {
  if (!outcome.ok()) {
    const std::lock_guard hold(job.batch->failures_lock);
    job.batch->failures.push_back({job.position, job.field, outcome, got});
  }
  finish(*job.batch, 1);
}

Outcome Pool::fill_from_pixels(const PythonJob& job, const DecodedImage& image, TensorSpec& got) {
  const Batch& batch = *job.batch;
  const FieldRows& rows = batch.fields[job.field];
  StageCounters counted;
  Scratch scratch(&counted);
  scratch.clock.start();
  const Filler& filler = *fillers_of(batch, job.position)[job.field];
  const Outcome outcome = filler.fill_from_pixels(key_of(batch, job.position), image, rows.spec,
                                                  rows.data + rows.row_bytes * job.position, got, scratch);
  python_stages_.merge(counted);
  return outcome;
}

StageCounters::Count Pool::stage(Stage stage) const {
  StageCounters::Count total = python_stages_.count(stage);
  for (std::size_t i = 0; i <= thread_count_; ++i) total += states_[i].stages.count(stage);
  return total += readers_.stage(stage);
}

}  // namespace penstock
