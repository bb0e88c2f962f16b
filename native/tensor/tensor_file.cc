#include "tensor/tensor_file.h"

#include <sys/uio.h>

#include <algorithm>
#include <new>

#include "files/crc.h"
#include "files/read_at.h"

namespace penstock {
namespace {

constexpr std::uint64_t kMaxHead = 64u << 10;
constexpr std::uint64_t kSlack = 1u << 10;  // a tail may be this much longer than the last one
constexpr std::uint64_t kMaxTail = (64u << 10) - kSlack;
constexpr std::uint64_t kMaxPredicted = kMaxRead;
constexpr std::uint64_t kWholeFile = 1u << 20;      // a file up to this size is read by one call
constexpr std::uint64_t kFirstParts = 16u << 10;    // of a larger one: this much from each end first
constexpr std::uint64_t kAround = 8u << 10;         // and later this much on both sides of what the parser asks for
constexpr std::uint64_t kKeptScratch = 16u << 20;
constexpr int kMaxMorePieces = 6;                   // SplitFile holds 8

constexpr const char* kShrunk = "truncated (the file became shorter while it was read)";

Outcome read_exactly(SampleFile& source, std::uint8_t* to, std::uint64_t bytes, std::uint64_t offset) {
  std::uint64_t done = 0;
  if (!source.read(to, bytes, offset, done)) return source.failure();
  return done == bytes ? Outcome::success() : Outcome::to_python(kShrunk);
}

constexpr const char* kMismatch = "shape or dtype is not the batch's";
constexpr const char* kChanged = "the elements do not match their CRC-32";

// The CRC-32 of the bytes of `record` that `bytes`, which begins at `offset` in the file, holds; `crc` is that of
// the record's bytes before them.
std::uint32_t crc_within(std::uint32_t crc, const FileRange& record, const std::uint8_t* bytes, std::uint64_t length,
                         std::uint64_t offset) noexcept {
  const std::uint64_t begin = std::max(record.offset, offset);
  const std::uint64_t end = std::min(record.offset + record.length, offset + length);
  return begin < end ? crc32(crc, bytes + (begin - offset), end - begin) : crc;
}

}  // namespace

TensorReader::TensorReader(StageClock* clock)
    : clock_(clock),
      head_(std::make_unique_for_overwrite<std::uint8_t[]>(kMaxHead)),
      tail_(std::make_unique_for_overwrite<std::uint8_t[]>(kMaxTail + kSlack)) {}

Outcome TensorReader::read(SampleFile& source, std::size_t name_length, const TensorSpec& want, std::uint8_t* row,
                           TensorSpec& got) noexcept {
  Prediction& guess = predictions_[name_length % predictions_.size()];
  Outcome outcome;
  if (guess.head != 0 && guess.name_length == name_length && read_predicted(source, guess, want, row, got, outcome))
    return outcome;

  Opened opened;
  outcome = open(source, opened);
  if (outcome.ok()) {
    const TensorLayout& layout = opened.layout;
    got = layout.spec;
    const std::uint64_t tail = opened.file.size() - layout.offset - layout.reach;
    if (layout.contiguous && layout.offset <= kMaxHead && layout.reach <= kMaxPredicted && tail <= kMaxTail)
      guess = {name_length, layout.offset, layout.reach, tail};
    else if (guess.name_length == name_length)
      guess = {};
    outcome = layout.spec == want ? load(source, opened, row) : Outcome::mismatch(kMismatch);
  }
  trim_scratch();
  return outcome;
}

// One call reads the whole file, its elements straight into the row. Head and tail are then parsed as if
// nothing had been foretold. False when the file turns out otherwise: the careful path is then taken.
bool TensorReader::read_predicted(SampleFile& source, const Prediction& guess, const TensorSpec& want, std::uint8_t* row,
                                  TensorSpec& got, Outcome& outcome) noexcept {
  std::int64_t bytes = 0;
  if (!checked_bytes(want, bytes) || static_cast<std::uint64_t>(bytes) != guess.bytes) return false;
  const std::uint64_t tail_room = guess.tail + kSlack;
  const std::array<iovec, 3> parts{{{head_.get(), guess.head}, {row, guess.bytes}, {tail_.get(), tail_room}}};
  const ssize_t n = source.readv(parts, 0);
  if (n < 0) return false;  // a folder, a pipe, a disk error: the careful path says which
  // A read that filled all the room leaves the file's size unknown.
  const std::uint64_t size = static_cast<std::uint64_t>(n), elements_end = guess.head + guess.bytes;
  if (size < elements_end || size == elements_end + tail_room) return false;
  SplitFile file(size);
  file.add(0, {head_.get(), guess.head});
  file.add(elements_end, {tail_.get(), size - elements_end});
  TensorLayout layout;
  if (parser_.parse(file, layout) != nullptr) return false;
  got = layout.spec;
  if (layout.spec != want) {
    outcome = Outcome::mismatch(kMismatch);
    return true;
  }
  if (!layout.contiguous || layout.offset != guess.head) return false;
  ++predicted_;
  outcome = Outcome::success();
  lap(Stage::read);
  if (layout.crc != 0) {
    std::uint32_t crc = crc_within(0, layout.storage, head_.get(), guess.head, 0);
    crc = crc_within(crc, layout.storage, row, guess.bytes, guess.head);
    crc = crc_within(crc, layout.storage, tail_.get(), size - elements_end, elements_end);
    if (crc != layout.crc) outcome = Outcome::to_python(kChanged);
    lap(Stage::check);
  }
  return true;
}

// Reads and parses what tells the layout: all of a small file, else both ends and what the parser asks for.
Outcome TensorReader::open(SampleFile& source, Opened& opened) noexcept {
  std::uint64_t size = 0;
  if (const Outcome outcome = source.size(size); !outcome.ok()) return outcome;
  if (size == 0) return Outcome::to_python("empty file");
  opened.file = SplitFile(size);
  if (size > kWholeFile) return read_parts(source, opened);
  std::uint8_t* bytes = scratch(size);
  if (!bytes) return Outcome::to_python("not enough memory");
  if (const Outcome outcome = read_exactly(source, bytes, size, 0); !outcome.ok()) return outcome;
  opened.file.add(0, {bytes, size});
  opened.whole = true;
  const char* reason = parser_.parse(opened.file, opened.layout);
  return reason ? Outcome::to_python(reason) : Outcome::success();
}

Outcome TensorReader::read_parts(SampleFile& source, Opened& opened) noexcept {
  const std::uint64_t size = opened.file.size();
  const std::array<FileRange, 2> ends{{{0, kFirstParts}, {size - kFirstParts, kFirstParts}}};
  const std::array<std::uint8_t*, 2> rooms{head_.get(), tail_.get()};
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (const Outcome outcome = read_exactly(source, rooms[i], kFirstParts, ends[i].offset); !outcome.ok()) return outcome;
    opened.file.add(ends[i].offset, {rooms[i], kFirstParts});
  }
  std::array<std::unique_ptr<std::uint8_t[]>, kMaxMorePieces> pieces;
  for (std::size_t i = 0;; ++i) {
    const char* reason = parser_.parse(opened.file, opened.layout);
    if (!reason) return Outcome::success();
    if (reason != kNotRead) return Outcome::to_python(reason);
    const FileRange missing = opened.file.missing();
    if (i == pieces.size() || missing.length > kMaxDirectoryBytes) return Outcome::to_python("headers too scattered");
    if (missing.offset > size || missing.length > size - missing.offset) return Outcome::to_python("truncated");
    // What lies around it is likely to be asked for next.
    const std::uint64_t begin = missing.offset - std::min(missing.offset, kAround);
    const std::uint64_t end = missing.offset + missing.length, bytes = std::min(size - end, kAround) + end - begin;
    pieces[i].reset(new (std::nothrow) std::uint8_t[bytes]);
    if (!pieces[i]) return Outcome::to_python("not enough memory");
    if (const Outcome outcome = read_exactly(source, pieces[i].get(), bytes, begin); !outcome.ok()) return outcome;
    opened.file.add(begin, {pieces[i].get(), bytes});
  }
}

// Brings the elements into the row.
Outcome TensorReader::load(SampleFile& source, const Opened& opened, std::uint8_t* row) noexcept {
  const TensorLayout& layout = opened.layout;
  if (opened.whole) {
    lap(Stage::read);
    const FileRange& record = layout.storage;
    if (layout.crc != 0) {
      const bool same = crc32(0, scratch_.get() + record.offset, record.length) == layout.crc;
      lap(Stage::check);
      if (!same) return Outcome::to_python(kChanged);
    }
    copy_strided(scratch_.get() + layout.offset, layout, row);
    lap(Stage::write);
    return Outcome::success();
  }
  std::uint8_t* bytes = layout.contiguous ? row : scratch(layout.reach);
  if (!bytes && layout.reach != 0) return Outcome::to_python("not enough memory");
  if (const Outcome outcome = read_exactly(source, bytes, layout.reach, layout.offset); !outcome.ok()) return outcome;
  lap(Stage::read);
  if (const Outcome outcome = check(source, layout, bytes); !outcome.ok()) return outcome;
  if (!layout.contiguous) {
    copy_strided(bytes, layout, row);
    lap(Stage::write);
  }
  return Outcome::success();
}

// Compares the CRC-32 of the whole record, of which `elements` holds the span of the tensor, with the file's. What lies
// around the span is read for it, as torch.load reads it. Overwrites tail_.
Outcome TensorReader::check(SampleFile& source, const TensorLayout& layout, const std::uint8_t* elements) noexcept {
  if (layout.crc == 0) return Outcome::success();
  std::uint32_t crc = 0;
  const auto add_from_file = [&](std::uint64_t from, std::uint64_t end) {
    for (std::uint64_t bytes = 0; from < end; from += bytes) {
      bytes = std::min(end - from, kMaxTail + kSlack);
      if (const Outcome outcome = read_exactly(source, tail_.get(), bytes, from); !outcome.ok()) return outcome;
      crc = crc32(crc, tail_.get(), bytes);
    }
    return Outcome::success();
  };
  const std::uint64_t elements_end = layout.offset + layout.reach;
  if (const Outcome outcome = add_from_file(layout.storage.offset, layout.offset); !outcome.ok()) return outcome;
  crc = crc32(crc, elements, layout.reach);
  if (const Outcome outcome = add_from_file(elements_end, layout.storage.offset + layout.storage.length); !outcome.ok())
    return outcome;
  lap(Stage::check);
  return crc == layout.crc ? Outcome::success() : Outcome::to_python(kChanged);
}

// Room for that many bytes, its content undefined; nullptr when there is no memory.
std::uint8_t* TensorReader::scratch(std::uint64_t bytes) noexcept {
  if (bytes > scratch_bytes_) {
    scratch_.reset();
    scratch_bytes_ = 0;
    scratch_.reset(new (std::nothrow) std::uint8_t[bytes]);
    if (!scratch_) return nullptr;
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

void TensorReader::trim_scratch() noexcept {
  if (scratch_bytes_ <= kKeptScratch) return;
  scratch_.reset();
  scratch_bytes_ = 0;
}

}  // namespace penstock
