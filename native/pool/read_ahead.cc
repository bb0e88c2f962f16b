#include "pool/read_ahead.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <span>
#include <system_error>
#include <utility>

#include "files/cache_tier.h"
#include "files/unique_fd.h"
#include "pool/block_signals.h"
#include "pool/file_memory.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kPiece = std::uint64_t{8} << 20;  // a read that is to end early ends after so many bytes
// A pass in which this share of the workers' time goes into samples that they sleep for has readers.
constexpr double kWorthShare = 0.1;
constexpr unsigned kJudged = 8;           // samples seen before that is judged,
constexpr unsigned kJudgedIfSlow = 2;     // where the workers slept for so long in so many samples
constexpr double kSlowlySeconds = 0.004;
constexpr std::uint32_t kMeteredEvery = 4;  // files of a reader: whether it slept is looked at for one in so many
constexpr std::size_t kMostSpans = 1 << 14;  // files that are recorded until they are taken

// Of a pool that ends: nobody will see it.
std::unique_ptr<BroughtFile> closed_file() {
  auto file = std::make_unique<BroughtFile>();
  file->outcome = Outcome::io_error(ECANCELED, "open");
  return file;
}

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

}  // namespace

// What readers share with the workers, and what those left behind keep.
struct ReadAhead::Shared : std::enable_shared_from_this<ReadAhead::Shared> {
  Shared(unsigned readers, std::uint64_t bytes, bool recorded) : bound(bytes), control(readers) {
    if (recorded) spans.reserve(kMostSpans);
  }

  struct Claim {
    std::shared_ptr<ReadList> list;
    std::size_t file = 0;
    std::uint64_t held = 0;  // bytes that are promised to it
  };

  void run(unsigned reader);
  bool claim(Claim& claim);
  std::unique_ptr<BroughtFile> bring(Claim& claim);
  void bring_bytes(Claim& claim, BroughtFile& brought);
  std::shared_ptr<const void> room_of(Claim& claim, FileMemory::Piece piece);
  bool make_room(Claim& claim, std::uint64_t bytes);
  void finish(const Claim& claim, std::unique_ptr<BroughtFile> brought, std::uint64_t nanoseconds);
  void release(std::uint64_t bytes) noexcept;
  void set_depth();

  const std::uint64_t bound;
  std::atomic<unsigned> depth{0};      // written under lock
  std::atomic<bool> stop{false};       // written under lock
  FileMemory memory;
  std::atomic<std::uint64_t> held{0};  // bytes brought and not taken, and those promised; grows under lock only
  std::atomic<bool> short_of_room{false};

  mutable std::mutex lock;
  std::condition_variable work;     // for readers within the depth
  std::condition_variable parked;   // for readers beyond it
  std::condition_variable brought;  // for workers
  std::condition_variable ended;    // for close()
  std::deque<std::weak_ptr<ReadList>> lists;
  ReadDepth control;
  ReadSpan span;
  Clock::time_point span_began;
  ReadCounts counts;
  unsigned running = 0;        // threads that have not ended
  std::size_t idle = 0;        // of these, those that wait for work
  std::uint64_t files = 0;     // whose sizes are known
  std::uint64_t size_sum = 0;  // of these files
  // What workers saw of their samples since readers were last considered.
  double slept_seconds = 0, seen_seconds = 0;
  unsigned seen = 0;
  StageCounters stages;  // added to under lock
  std::vector<std::pair<unsigned, WorkSpan>> spans;  // of readers by number; without capacity where nobody records
  std::vector<std::thread> threads;
};

// The next file that nobody has begun, where there is room for one of the usual size. Under the lock.
bool ReadAhead::Shared::claim(Claim& claim) {
  const std::uint64_t usual = files == 0 ? 0 : std::min(size_sum / files, bound / 2);
  const std::uint64_t now = held.load(std::memory_order_relaxed);
  if (now > 0 && now + usual > bound) {
    short_of_room.store(true, std::memory_order_relaxed);
    return false;
  }
  while (!lists.empty()) {
    if (const std::shared_ptr<ReadList> list = lists.front().lock()) {
      while (list->next < list->files.size()) {
        const std::size_t file = list->next++;
        ReadSlot::State state = ReadSlot::idle;
        if (list->files[file].table == nullptr ||
            !list->slots[file].state.compare_exchange_strong(state, ReadSlot::reading, std::memory_order_acq_rel))
          continue;
        claim = {list, file, usual};
        held.fetch_add(usual, std::memory_order_relaxed);
        return true;
      }
    }
    lists.pop_front();
  }
  return false;
}

void ReadAhead::Shared::run(unsigned reader) {
  std::unique_lock hold(lock);
  std::uint32_t number = 0;
  while (!stop.load(std::memory_order_relaxed)) {
    if (reader >= depth.load(std::memory_order_relaxed)) {
      parked.wait(hold);
      continue;
    }
    Claim mine;
    if (!claim(mine)) {
      ++idle;
      work.wait(hold);
      --idle;
      continue;
    }
    hold.unlock();
    const bool metered = number++ % kMeteredEvery == 0;
    SleepClock clock;
    if (metered) clock.start();
    const auto began = Clock::now();
    std::unique_ptr<BroughtFile> file;
    try {
      file = bring(mine);
    } catch (const std::bad_alloc&) {  // the worker reads it, or finds that there is no memory
      release(mine.held);
      mine.held = 0;
    }
    const auto done = Clock::now();
    double seconds = 0;
    const bool blocked = metered && clock.asleep(seconds) > 0;
    hold.lock();
    if (metered) ++span.metered, ++counts.seen;
    if (blocked) ++span.blocked, ++counts.blocked;
    if (spans.size() < spans.capacity())
      spans.push_back({reader, {span_time(began), span_time(done), 1, Stage::read_ahead}});
    const auto took = std::chrono::nanoseconds(done - began).count();
    finish(mine, std::move(file), static_cast<std::uint64_t>(took));
  }
  if (--running == 0) ended.notify_all();
}

// Opens and reads one file, without the lock.
std::unique_ptr<BroughtFile> ReadAhead::Shared::bring(Claim& claim) {
  auto file = std::make_unique<BroughtFile>();
  const FileLocation& where = claim.list->files[claim.file];
  if (where.cache != nullptr && where.cache->has(where.sample)) {  // nearer than its file: the worker reads it
    release(claim.held);
    claim.held = 0;
    return nullptr;
  }
  file->outcome = where.index < where.table->size() ? where.table->open(where.index, file->file)
                                                    : Outcome::io_error(ERANGE, "index");
  if (file->outcome.ok()) bring_bytes(claim, *file);
  if (where.cache != nullptr && where.keeps_file && file->file.in_memory())
    where.cache->keep(where.sample, where.table->name(where.index), file->file.bytes());
  if (claim.held > 0) file->room = room_of(claim, {});
  return file;
}

// Reads the bytes of an open file into memory, or leaves the file as it is: to the worker, which then reads it.
void ReadAhead::Shared::bring_bytes(Claim& claim, BroughtFile& brought_file) {
  std::uint64_t size = 0;
  if (brought_file.file.in_memory() || !brought_file.file.size(size).ok() || size == 0 || !make_room(claim, size)) {
    release(claim.held);
    claim.held = 0;
    return;
  }
  // A byte more than it has: a file that has grown meanwhile is left to the worker, which reads to its end. One that is
  // as long as it was ends with a short read, after which no other read has to find its end.
  FileMemory::Piece piece = memory.take(size + 1);
  std::uint64_t done = 0;
  while (piece.bytes && done <= size && !stop.load(std::memory_order_relaxed)) {
    const iovec room{piece.bytes.get() + done, static_cast<std::size_t>(std::min(size + 1 - done, kPiece))};
    const ssize_t got = brought_file.file.readv({&room, 1}, done);
    if (got < 0) break;
    if (brought_file.file.in_memory()) {  // a large one that is checked as a whole
      brought_file.bytes = size;
      return;
    }
    done += static_cast<std::uint64_t>(got);
    if (got > 0 && done != size) continue;
    brought_file.bytes = done;
    const std::span<const std::uint8_t> bytes(piece.bytes.get(), done);
    brought_file.room = room_of(claim, std::move(piece));
    brought_file.file = SampleFile::memory(bytes, brought_file.room);
    return;
  }
  release(claim.held);
  claim.held = 0;
}

// What gives back the bytes that are held for a file, and their memory, when nobody needs them any more.
std::shared_ptr<const void> ReadAhead::Shared::room_of(Claim& claim, FileMemory::Piece piece) {
  auto end = [self = shared_from_this(), held = std::exchange(claim.held, 0), piece = std::move(piece)](const void*) mutable {
    if (piece.bytes) self->memory.give_back(std::move(piece));
    self->release(held);
  };
  return {nullptr, std::move(end)};  // which calls it where there is no memory
}

// Whether a file of this size may be held; a file larger than all that may be held never is.
bool ReadAhead::Shared::make_room(Claim& claim, std::uint64_t bytes) {
  const std::lock_guard hold(lock);
  ++files;
  size_sum += std::min(bytes, bound);
  const std::uint64_t others = held.load(std::memory_order_relaxed) - claim.held;
  if (bytes > bound || others > bound - bytes) return false;
  // Others may give room back meanwhile: the difference is added, not the sum stored.
  const std::uint64_t now = held.fetch_add(bytes - claim.held, std::memory_order_relaxed) + (bytes - claim.held);
  claim.held = bytes;
  counts.most_held = std::max(counts.most_held, now);
  return true;
}

// A file that a worker takes or nobody wants any more. Takes no lock: a list may end in any line.
void ReadAhead::Shared::release(std::uint64_t bytes) noexcept {
  held.fetch_sub(bytes, std::memory_order_relaxed);
  if (short_of_room.exchange(false, std::memory_order_relaxed)) work.notify_one();
}

// Hands a file to the worker that comes, or has come, for it. Under the lock.
void ReadAhead::Shared::finish(const Claim& claim, std::unique_ptr<BroughtFile> file, std::uint64_t nanoseconds) {
  const std::uint64_t bytes = file ? file->bytes : 0;
  ReadSlot& slot = claim.list->slots[claim.file];
  slot.brought = std::move(file);
  slot.state.store(ReadSlot::ready, std::memory_order_release);
  brought.notify_all();
  counts.bytes += bytes;
  stages.add(Stage::read_ahead, nanoseconds, 1);
  span.bytes += bytes;
  ++span.files;
  span.seconds = seconds_since(span_began);
  if (depth.load(std::memory_order_relaxed) == 0 || !control.judges(span)) return;
  control.judge(span);
  set_depth();
}

// Has as many readers as were chosen, and begins another span. Under the lock.
void ReadAhead::Shared::set_depth() {
  unsigned chosen = control.now();
  try {
    const BlockSignals blocked;  // new threads inherit the mask, and the calling thread may be one of Python's
    while (threads.size() < chosen) {
      threads.emplace_back([self = shared_from_this(), i = static_cast<unsigned>(threads.size())] { self->run(i); });
      ++running;
      pthread_setname_np(threads.back().native_handle(), "penstock-read");
    }
  } catch (const std::system_error&) {  // the system has no more threads
    chosen = static_cast<unsigned>(threads.size());
  }
  if (chosen == 0) slept_seconds = seen_seconds = 0, seen = 0;
  const bool more = chosen > depth.load(std::memory_order_relaxed);
  depth.store(chosen, std::memory_order_relaxed);
  counts.deepest = std::max(counts.deepest, chosen);
  span = {};
  span_began = Clock::now();
  if (more) parked.notify_all();
}

ReadAhead::ReadAhead(unsigned readers, std::uint64_t bytes, bool recorded)
    : shared_(std::make_shared<Shared>(readers, bytes, recorded)) {}

ReadAhead::~ReadAhead() { close(); }

void ReadAhead::add(const std::shared_ptr<ReadList>& list) {
  Shared& shared = *shared_;
  const std::lock_guard hold(shared.lock);
  while (!shared.lists.empty() && shared.lists.front().expired()) shared.lists.pop_front();
  shared.lists.push_back(list);
  if (depth() == 0) return;
  for (std::size_t i = 0; i < std::min(list->files.size(), shared.idle); ++i) shared.work.notify_one();
}

std::unique_ptr<BroughtFile> ReadAhead::take(ReadList& list, std::size_t file, StageClock& clock) {
  if (list.files[file].table == nullptr) return nullptr;
  Shared& shared = *shared_;
  ReadSlot& slot = list.slots[file];
  ReadSlot::State state = ReadSlot::idle;
  if (slot.state.compare_exchange_strong(state, ReadSlot::worker, std::memory_order_acq_rel)) {
    if (depth() == 0) return nullptr;
    const std::lock_guard hold(shared.lock);
    ++shared.counts.direct;
    ++shared.span.starved;
    return nullptr;
  }
  if (state == ReadSlot::worker || state == ReadSlot::taken) return nullptr;  // it is read a second time
  {
    std::unique_lock hold(shared.lock);
    const auto there = [&] { return slot.state.load(std::memory_order_acquire) == ReadSlot::ready; };
    if (there()) {
      shared.counts.ahead += slot.brought ? 1 : 0;  // none: it is nearer than its file
      ++shared.span.served;
    } else {
      ++shared.counts.awaited;
      ++shared.span.starved;
      shared.brought.wait(hold, [&] { return there() || shared.stop.load(std::memory_order_relaxed); });
      if (!there()) return closed_file();
    }
  }
  clock.lap(Stage::wait);
  slot.state.store(ReadSlot::taken, std::memory_order_relaxed);
  return std::move(slot.brought);
}

void ReadAhead::observe(double seconds, double asleep) {
  Shared& shared = *shared_;
  const std::lock_guard hold(shared.lock);
  ++shared.counts.seen;
  shared.counts.blocked += asleep > 0 ? 1 : 0;
  if (shared.stop.load(std::memory_order_relaxed) || depth() > 0) return;
  shared.seen_seconds += seconds;
  shared.slept_seconds += asleep;
  ++shared.seen;
  const bool slowly = shared.seen >= kJudgedIfSlow && shared.slept_seconds > kSlowlySeconds;
  if (shared.seen < kJudged && !slowly) return;
  if (shared.slept_seconds > shared.seen_seconds * kWorthShare) {
    shared.control.start();
    shared.set_depth();
  }
  if (shared.seen < 2 * kJudged) return;
  shared.seen /= 2;
  shared.seen_seconds /= 2, shared.slept_seconds /= 2;
}

void ReadAhead::start() {
  const std::lock_guard hold(shared_->lock);
  if (shared_->stop.load(std::memory_order_relaxed) || depth() > 0) return;
  shared_->control.start();
  shared_->set_depth();
}

unsigned ReadAhead::depth() const noexcept { return shared_->depth.load(std::memory_order_relaxed); }

ReadCounts ReadAhead::counts() const {
  const std::lock_guard hold(shared_->lock);
  ReadCounts counts = shared_->counts;
  counts.depth = depth();
  return counts;
}

StageCounters::Count ReadAhead::stage(Stage stage) const { return shared_->stages.count(stage); }

std::vector<ThreadSpans> ReadAhead::take_spans() {
  std::vector<ThreadSpans> taken;
  const std::lock_guard hold(shared_->lock);
  for (const auto& [reader, span] : shared_->spans) {
    for (auto next = static_cast<unsigned>(taken.size()); next <= reader; ++next)
      taken.push_back({ThreadSpans::reader, next, {}});
    taken[reader].spans.push_back(span);
  }
  shared_->spans.clear();
  return taken;
}

void ReadAhead::close() {
  Shared& shared = *shared_;
  std::vector<std::thread> threads;
  bool all = false;
  {
    std::unique_lock hold(shared.lock);
    shared.stop.store(true, std::memory_order_relaxed);
    shared.work.notify_all();
    shared.parked.notify_all();
    shared.brought.notify_all();
    shared.depth.store(0, std::memory_order_relaxed);
    all = shared.ended.wait_for(hold, kPatience, [&] { return shared.running == 0; });
    threads.swap(shared.threads);
  }
  for (std::thread& thread : threads) {
    if (all) {
      thread.join();
    } else {
      thread.detach();
    }
  }
}

std::weak_ptr<const void> ReadAhead::busy() const { return shared_; }

}  // namespace penstock
