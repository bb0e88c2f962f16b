// Reading as a separate stage: reader threads that bring the files of coming samples into memory, ahead of the workers.
//
// What lies in memory is read by the worker that needs it, and there are no readers. Workers look, at some of their
// samples, whether the thread slept for it (RUSAGE_THREAD counts that on every file system); where it did, readers start
// (read_depth.h says how many). They walk the samples of all batches known, in order. A worker takes what has been
// brought, waits for what is being brought, and reads itself what nobody has begun: each sample is claimed once.
//
// Errors: a file that cannot be opened is that outcome at its sample. All else that is unusual (no regular file, a read
// that fails, a file that grows, one that does not fit) is the open file, which the worker reads.
//
// Threads: every method may be called by any thread, none with Python's lock needed; take() blocks until the sample is
// there. Readers are detached where they do not come back from a read when close() is called: they touch nothing but what
// they share, and a FileTable, which must outlive them (see busy()).
// Memory: a ReadList owns its slots and what was brought into them, at most `bytes` of all lists together. The tables of
// a list are borrowed, but for its own table of names.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "files/file_table.h"
#include "files/outcome.h"
#include "files/sample_file.h"
#include "files/stages.h"
#include "pool/read_depth.h"
#include "pool/sleep_clock.h"
#include "pool/timeline.h"
#include "tensor/filler.h"

namespace penstock {

// The file of a sample, and what reads it.
struct ReadSlot {
  enum State : std::uint8_t { idle, worker, reading, ready, taken };

  std::atomic<State> state{idle};
  std::unique_ptr<BroughtFile> brought;  // set before `ready`, moved out after it
};

// The files of a batch's samples, field by field.
struct ReadList {
  explicit ReadList(std::vector<FileLocation> given) : files(std::move(given)), slots(new ReadSlot[files.size()]) {}

  const std::vector<FileLocation> files;      // those without a table are not files
  const std::unique_ptr<ReadSlot[]> slots;    // one a file
  std::shared_ptr<const FileTable> names;     // the batch's own table, kept
  std::size_t next = 0;                       // the first slot that readers have not looked at; theirs
};

struct ReadCounts {
  unsigned depth = 0;             // readers at work
  unsigned deepest = 0;           // the most that there were at a time
  std::uint64_t ahead = 0;        // samples that readers brought before a worker came for them
  std::uint64_t awaited = 0;      // samples that a worker waited for
  std::uint64_t direct = 0;       // samples that workers read themselves, as far as readers were at work
  std::uint64_t seen = 0;         // samples at which it was seen whether a read blocks
  std::uint64_t blocked = 0;      // of these: it did
  std::uint64_t bytes = 0;        // that readers brought
  std::uint64_t most_held = 0;    // the most bytes that were held ahead at a time
};

class ReadAhead {
 public:
  // At most `readers` threads, and so many bytes held ahead. recorded: take_spans() says what they did. No thread is
  // started here.
  ReadAhead(unsigned readers, std::uint64_t bytes, bool recorded = false);
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ~ReadAhead();

  // Files that workers will ask for, after those added before. A list that its batch releases is forgotten.
  void add(const std::shared_ptr<ReadList>& list);

  // Takes what was brought for a file, after waiting for a reader that is at it. Null: the caller reads the file.
  std::unique_ptr<BroughtFile> take(ReadList& list, std::size_t file, StageClock& clock);

  // A worker filled a sample within so many seconds, of which it slept some: for its file probably.
  void observe(double seconds, double asleep);

  // Starts readers as where reads have been seen to block.
  void start();

  // Readers at work.
  [[nodiscard]] unsigned depth() const noexcept;
  [[nodiscard]] ReadCounts counts() const;
  [[nodiscard]] StageCounters::Count stage(Stage stage) const;

  // What each reader did since the last call; what found no room is lost.
  [[nodiscard]] std::vector<ThreadSpans> take_spans();

  // Ends the readers: waits kPatience for those at a read, and leaves those behind that are longer about it.
  void close();
  // A token that is expired when no reader is left behind.
  [[nodiscard]] std::weak_ptr<const void> busy() const;

  static constexpr std::chrono::milliseconds kPatience{100};

 private:
  struct Shared;

  std::shared_ptr<Shared> shared_;
};

}  // namespace penstock
