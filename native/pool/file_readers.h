// Files that threads of somebody else's need, brought ahead of these threads where reads block (read_ahead.h): for
// samples that Python makes, and for decoders on a device.
//
// Threads: every method may be called by any thread, none with Python's lock needed; take() blocks until the file is
// there. In a process that was forked off nothing is done: the readers do not exist there (see abandoned()).
// Memory: shares the program, whose fillers know where a sample lies; a ReadList belongs to who adds it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "files/path_table.h"
#include "files/stages.h"
#include "pool/pool.h"
#include "pool/read_ahead.h"
#include "pool/sleep_clock.h"

namespace penstock {

class FileReaders {
 public:
  // At most `readers` threads, and so many bytes held ahead. No thread is started here.
  FileReaders(std::shared_ptr<const Program> program, unsigned readers, std::uint64_t bytes);

  // The files that hold the first field of these samples, needed after those added before. `source` is empty where there
  // is one; `names` are those of the samples, for sources without a table of their own, or null.
  [[nodiscard]] std::shared_ptr<ReadList> add(std::span<const std::int64_t> local, std::span<const std::int32_t> source,
                                              std::shared_ptr<const PathTable> names);

  // The bytes of a file that a reader has brought, or is at. Null: the caller reads the file.
  [[nodiscard]] std::unique_ptr<BroughtFile> take(ReadList& list, std::size_t file);

  // Reads the file of a sample in the calling thread, where it has no more than so many bytes. Code::python: it has more
  // or none, or is no regular file.
  [[nodiscard]] Outcome read(std::size_t source, std::size_t local, const PathTable* names, std::uint64_t most,
                             BroughtFile& out);

  // Does work that reads one file, and sees at some calls whether the thread sleeps for it.
  template <class Work>
  void metered(Work&& work) {
    const bool meters = depth() == 0 && SleepMeter::meters(reads_.fetch_add(1, std::memory_order_relaxed)) && !abandoned();
    SleepClock clock;
    if (meters) clock.start();
    work();
    if (!meters) return;
    double seconds = 0;
    const double asleep = clock.asleep(seconds);
    ahead_.observe(seconds, asleep);
  }

  // For tests: starts readers, whether or not reads block.
  void start() { ahead_.start(); }

  [[nodiscard]] unsigned depth() const noexcept { return ahead_.depth(); }
  [[nodiscard]] ReadCounts counts() const { return ahead_.counts(); }
  [[nodiscard]] StageCounters::Count stage(Stage stage) const;
  // A token that is expired once no reader thread uses the program any more.
  [[nodiscard]] std::weak_ptr<const void> busy() const { return ahead_.busy(); }

  // Ends the readers, and wakes everybody who waits.
  void close();

  // True in a process forked off from the one that made this.
  [[nodiscard]] bool abandoned() const;

 private:
  const std::shared_ptr<const Program> program_;
  const pid_t process_;
  std::atomic<std::uint32_t> reads_{0};
  StageCounters waits_;  // of all who called take()
  ReadAhead ahead_;
};

}  // namespace penstock
