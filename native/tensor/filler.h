// The interface of a filler: how one sample becomes one row of a batch. Whoever adds a kind of sample writes one Filler
// and a line in bind/; the pool knows no other.
//
// Threads: a Filler is immutable once built; any number of worker threads call fill() at once, each with its own
// Scratch. Memory: a Filler borrows arrays (their owner outlives the pool, see pool.h) and shares path tables and
// recipes; the row belongs to the batch; a Scratch owns its parts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <typeinfo>
#include <utility>
#include <vector>

#include "files/cache_tier.h"
#include "files/file_table.h"
#include "files/outcome.h"
#include "files/stages.h"
#include "order/random.h"
#include "tensor/dtype.h"

namespace penstock {

// What one sample is known by: where it lies in its source, and what its random draws depend on.
struct SampleKey {
  std::size_t local;       // index into the source
  std::uint64_t sample;    // index into the dataset that the loader was given
  std::uint64_t position;  // in the order of the epoch, of all ranks
  PhiloxKey epoch;         // epoch_key(seed, epoch)
  std::size_t place = 0;   // index into the batch's own paths, for sources without a table of theirs

  [[nodiscard]] SampleDraws draws() const { return {epoch, sample, position}; }
};

// An image that Python decoded: height x width x channels bytes, borrowed.
struct DecodedImage {
  const std::uint8_t* data;
  int height, width, channels;
};

// A sample's file that a reader has opened and read ahead of the worker: its bytes, the open file where the worker is to
// read it, or why it cannot be opened.
struct BroughtFile {
  Outcome outcome;
  SampleFile file;
  std::uint64_t bytes = 0;           // of the file, where they are in memory
  std::shared_ptr<const void> room;  // ends when the bytes are taken or dropped
};

// What fillers of one kind keep from sample to sample, in one thread.
class ScratchPart {
 public:
  ScratchPart() = default;
  ScratchPart(const ScratchPart&) = delete;
  ScratchPart& operator=(const ScratchPart&) = delete;
  virtual ~ScratchPart() = default;

  // Bytes that depend on the samples' sizes.
  [[nodiscard]] virtual std::size_t held() const noexcept = 0;
  // Gives these bytes back.
  virtual void release() noexcept = 0;
};

// Working memory of one worker thread, reused from sample to sample.
class Scratch {
 public:
  // `counters` (of this thread, or null: nothing is counted) outlive the object.
  explicit Scratch(StageCounters* counters = nullptr) noexcept : clock(counters) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // This thread's part of a kind, made from the clock when it is first asked for. Throws std::bad_alloc.
  template <class Part>
  Part& part() {
    for (auto& [kind, part] : parts_)
      if (*kind == typeid(Part)) return static_cast<Part&>(*part);
    parts_.emplace_back(&typeid(Part), std::make_unique<Part>(clock));
    return static_cast<Part&>(*parts_.back().second);
  }

  // The file of a sample, until the next call: the one that was brought, or what a cache has of it, else opened here. No
  // table, or an index past its end, is io_error(ERANGE).
  [[nodiscard]] Outcome open(const FileLocation& where, SampleFile& file) noexcept;
  std::unique_ptr<BroughtFile> brought;  // of the sample that is filled next; open() takes it

  // Gives memory back where the parts hold over kKeptBytes, so that one huge image does not cost its memory for the
  // rest of the pass. To be called when no sample is in work.
  void trim() noexcept;
  [[nodiscard]] std::size_t held() const noexcept;

  const std::uint8_t* staged = nullptr;  // what stage() has copied of the sample that is filled next, or null
  StageClock clock;

  static constexpr std::size_t kKeptBytes = std::size_t{64} << 20;

 private:
  std::vector<std::pair<const std::type_info*, std::unique_ptr<ScratchPart>>> parts_;
  std::vector<std::uint8_t> cached_;  // the bytes of a sample that a cache has
};

class Filler {
 public:
  Filler() = default;
  Filler(const Filler&) = delete;
  Filler& operator=(const Filler&) = delete;
  virtual ~Filler() = default;

  // Writes sample `key` into `row`, which holds checked_bytes(want). On Code::mismatch `got` is what the
  // sample would need; the row's content is then undefined, as after every outcome but ok.
  // `paths` is the batch's own table of names, or null.
  virtual Outcome fill(const SampleKey& key, const FileTable* paths, const TensorSpec& want, std::uint8_t* row,
                       TensorSpec& got, Scratch& scratch) const noexcept = 0;

  // The same for a sample of which fill() said Code::python, and which Python has decoded to pixels.
  virtual Outcome fill_from_pixels(const SampleKey& key, const DecodedImage& image, const TensorSpec& want,
                                   std::uint8_t* row, TensorSpec& got, Scratch& scratch) const noexcept;

  // Which file the sample is; none where it lies in memory. `paths` as for fill(). The index may be past the end of the
  // table, whose open() then fails.
  [[nodiscard]] virtual FileLocation locate(const SampleKey& key, const FileTable* paths) const noexcept {
    static_cast<void>(key), static_cast<void>(paths);
    return {};
  }

  // The same filler of files whose bytes a cache keeps, by SampleKey::local; null where samples are not files.
  [[nodiscard]] virtual std::shared_ptr<Filler> cached(std::shared_ptr<const SampleCache> cache) const {
    static_cast<void>(cache);
    return nullptr;
  }

  // The processor may fetch what fill() will read next; a hint without effect on results.
  virtual void prefetch(std::size_t local) const noexcept { static_cast<void>(local); }

  // Bytes that a row of this filler moves, when the samples lie in memory; 0 for files.
  [[nodiscard]] virtual std::size_t memory_bytes() const noexcept { return 0; }

  // Bytes that stage() copies of a sample in memory, from which fill() then makes the row, at any later time; 0: fill()
  // reads the memory itself, whose owner must not move it meanwhile.
  [[nodiscard]] virtual std::size_t staged_bytes() const noexcept { return 0; }
  virtual void stage(std::size_t local, std::uint8_t* to) const noexcept { static_cast<void>(local), static_cast<void>(to); }

 protected:
  // The processor's prefetcher continues after kPrefetchBytes.
  static void prefetch_bytes(const std::uint8_t* data, std::size_t bytes) noexcept {
    for (std::size_t offset = 0; offset < std::min(bytes, kPrefetchBytes); offset += kCacheLine)
      __builtin_prefetch(data + offset);
  }

 private:
  static constexpr std::size_t kCacheLine = 64, kPrefetchBytes = 4096;
};

}  // namespace penstock
