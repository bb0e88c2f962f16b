#include "image/jpeg_index.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "files/crc.h"
#include "files/little_endian.h"
#include "files/read_at.h"

namespace penstock {

// What this process, and those forked off from it, know of the index.
struct JpegIndex::Noted {
  std::atomic<std::uint64_t> files;  // with points
  std::atomic<std::uint64_t> hits, changed;
  std::atomic<int> error;
  std::atomic<std::uint8_t> points[1];  // of each sample: how many states are known, as far as this process knows
};

namespace {

static_assert(std::atomic<std::uint8_t>::is_always_lock_free && sizeof(std::atomic<std::uint8_t>) == 1);

// kMagic, samples, bytes of a slot, zeros, and the CRC-32C of what comes before it.
constexpr std::size_t kHeaderBytes = 64;
constexpr std::uint64_t kMagic = 0x3130'5847'4550'4A50;  // "PJPEGX01", little-endian
using Header = std::array<std::uint8_t, kHeaderBytes>;

// A slot begins with the number of its states (1 byte), a zero, the rows from one state to the next (2), and the check.
constexpr std::size_t kSlotHead = 8, kCheck = 4;
using Slot = std::array<std::uint8_t, JpegIndex::kMostSlot>;
constexpr std::uint64_t kAligned = 4096;  // the slots begin at a multiple of this

void put(std::uint64_t value, std::uint8_t* to, int bytes) {
  for (int i = 0; i < bytes; ++i) to[i] = static_cast<std::uint8_t>(value >> (8 * i));
}

Header header_of(std::uint64_t samples, std::uint32_t slot_bytes) {
  Header header{};
  put(kMagic, header.data(), 8);
  put(samples, header.data() + 8, 8);
  put(slot_bytes, header.data() + 16, 4);
  put(crc32c(0, header.data(), kHeaderBytes - 4), header.data() + kHeaderBytes - 4, 4);
  return header;
}

std::uint64_t first_slot(std::uint64_t samples) { return (kHeaderBytes + samples + kAligned - 1) / kAligned * kAligned; }

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

std::size_t bytes_of(unsigned points) { return kSlotHead + points * jpeg::kRowStateBytes; }

jpeg::RowState state_in(const Slot& slot, unsigned point) { return jpeg::load_row_state(slot.data() + bytes_of(point)); }

// Where what a state says ends in the file; past its end for a state that cannot be one of it.
std::size_t end_of(const IndexedFile& file, const jpeg::RowState& state) {
  return file.head + (std::size_t{state.bit} + 7) / 8;
}

std::uint32_t check_of(const IndexedFile& file, const Slot& slot, unsigned points, std::size_t end) {
  std::uint32_t crc = crc32c(0, file.bytes.data(), end);
  crc = crc32c(crc, slot.data(), kCheck);
  return crc32c(crc, slot.data() + kSlotHead, bytes_of(points) - kSlotHead);
}

}  // namespace

std::uint64_t JpegIndex::file_bytes(std::uint64_t samples, std::uint32_t slot_bytes) {
  if (slot_bytes < kLeastSlot || slot_bytes > kMostSlot) throw std::invalid_argument("a slot of that size");
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  if (samples > most / (kMostSlot + 1) - kAligned) throw std::invalid_argument("more samples than an index can hold");
  return first_slot(samples) + samples * slot_bytes;
}

JpegIndex::JpegIndex(UniqueFd file, std::uint64_t samples, std::uint32_t slot_bytes, bool writable)
    : file_(std::move(file)), samples_(samples), slot_bytes_(slot_bytes), writable_(writable) {
  prepare();
  constexpr int kUntouched = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const noted = ::mmap(nullptr, noted_bytes(), PROT_READ | PROT_WRITE, kUntouched, -1, 0);
  if (noted == MAP_FAILED) fail("mmap");
  noted_ = static_cast<Noted*>(noted);
  refresh();
}

JpegIndex::~JpegIndex() { ::munmap(noted_, noted_bytes()); }

std::shared_ptr<JpegIndex> JpegIndex::in_memory(std::uint64_t samples, std::uint32_t slot_bytes) {
  UniqueFd file(::memfd_create("penstock-jpeg-index", MFD_CLOEXEC));
  if (!file) fail("memfd_create");
  return std::make_shared<JpegIndex>(std::move(file), samples, slot_bytes, true);
}

std::uint64_t JpegIndex::noted_bytes() const noexcept { return sizeof(Noted) + samples_; }

// Gives a new file its size and its header; those that several processes give it at once are the same.
void JpegIndex::prepare() {
  const std::uint64_t size = file_bytes(samples_, slot_bytes_);
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) fail("fstat");
  const auto found = static_cast<std::uint64_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || found > size || (found < size && !writable_))
    throw std::invalid_argument("not an index of so many samples");
  if (found < size && ::ftruncate(file_.get(), static_cast<off_t>(size)) != 0) fail("ftruncate");
  const Header wanted = header_of(samples_, slot_bytes_);
  Header header{};
  std::uint64_t done = 0;
  if (!read_at(file_.get(), header.data(), header.size(), 0, done)) fail("pread");
  if (header == wanted) return;
  if (header != Header{} || !writable_) throw std::invalid_argument("not an index of so many samples");
  if (::pwrite(file_.get(), wanted.data(), wanted.size(), 0) != static_cast<ssize_t>(wanted.size())) fail("pwrite");
}

void JpegIndex::refresh() noexcept {
  std::array<std::uint8_t, 16384> part;
  for (std::uint64_t at = 0; at < samples_; at += part.size()) {
    std::uint64_t done = 0;
    const std::uint64_t bytes = std::min<std::uint64_t>(part.size(), samples_ - at);
    if (!read_at(file_.get(), part.data(), bytes, kHeaderBytes + at, done)) return;
    for (std::uint64_t i = 0; i < done; ++i)
      if (part[i] != 0) note(at + i, part[i]);
  }
}

void JpegIndex::note(std::uint64_t sample, std::uint8_t points) noexcept {
  if (noted_->points[sample].exchange(points, std::memory_order_relaxed) == 0)
    noted_->files.fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t JpegIndex::slot_at(std::uint64_t sample) const noexcept {
  return first_slot(samples_) + sample * slot_bytes_;
}

// Rows from one state of an image to the next; row 0 needs none.
int JpegIndex::step_of(int mcu_rows) const noexcept {
  const int room = static_cast<int>((slot_bytes_ - kSlotHead) / jpeg::kRowStateBytes);
  return std::max(1, (mcu_rows - 1 + room - 1) / room);
}

unsigned JpegIndex::find(std::uint64_t sample, const IndexedFile& file, int row, jpeg::RowStates& states) noexcept {
  states.known.clear();
  if (sample >= samples_) return 0;
  const unsigned noted = noted_->points[sample].load(std::memory_order_relaxed);
  const int step = step_of(file.mcu_rows);
  if (noted == 0 || row < step) return noted;

  Slot slot;
  std::uint64_t done = 0;
  if (!read_at(file_.get(), slot.data(), slot_bytes_, slot_at(sample), done) || done < kSlotHead) return 0;
  const unsigned points = slot[0];
  const auto reach = static_cast<int>(points) * step;
  const bool formed = points > 0 && bytes_of(points) <= done && le16(slot.data() + 2) == step && reach < file.mcu_rows;
  const std::size_t end = formed ? end_of(file, state_in(slot, points - 1)) : 0;
  if (!formed || end > file.bytes.size() || check_of(file, slot, points, end) != le32(slot.data() + kCheck)) {
    noted_->changed.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  try {
    states.known.resize(static_cast<std::size_t>(reach) + 1);
  } catch (const std::exception&) {  // bad_alloc
    states.known.clear();
    return points;
  }
  for (unsigned point = 0; point < points; ++point)
    states.known[static_cast<std::size_t>(step) * (point + 1)] = state_in(slot, point);
  noted_->hits.fetch_add(1, std::memory_order_relaxed);
  return points;
}

void JpegIndex::keep(std::uint64_t sample, const IndexedFile& file, const jpeg::RowStates& states,
                     unsigned known) noexcept {
  if (!writable_ || sample >= samples_ || noted_->error.load(std::memory_order_relaxed) != 0) return;
  const int step = step_of(file.mcu_rows);
  if (step > std::numeric_limits<std::uint16_t>::max()) return;
  Slot slot;
  unsigned points = 0;
  std::size_t end = 0;
  for (int row = step; row < file.mcu_rows && static_cast<std::size_t>(row) < states.known.size(); row += step) {
    const jpeg::RowState& state = states.known[static_cast<std::size_t>(row)];
    if (state.bit == jpeg::RowState::kUnknown || end_of(file, state) > file.bytes.size()) break;
    end = end_of(file, state);
    jpeg::store_row_state(state, slot.data() + bytes_of(points++));
  }
  if (points <= known) return;
  slot[0] = static_cast<std::uint8_t>(points);
  slot[1] = 0;
  put(static_cast<std::uint64_t>(step), slot.data() + 2, 2);
  put(check_of(file, slot, points, end), slot.data() + kCheck, 4);
  if (!write({slot.data(), bytes_of(points)}, slot_at(sample)) || !write({slot.data(), 1}, kHeaderBytes + sample)) return;
  note(sample, static_cast<std::uint8_t>(points));
}

// False where it cannot be written whole: a full disk, a quota. Nothing is written from then on.
bool JpegIndex::write(std::span<const std::uint8_t> bytes, std::uint64_t offset) noexcept {
  ssize_t written = 0;
  do {
    written = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(bytes.size())) return true;
  noted_->error.store(written < 0 ? errno : ENOSPC, std::memory_order_relaxed);
  return false;
}

JpegIndex::Counts JpegIndex::counts() const noexcept {
  struct stat status {};
  const std::uint64_t bytes = ::fstat(file_.get(), &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
  return {noted_->files.load(std::memory_order_relaxed), bytes, noted_->hits.load(std::memory_order_relaxed),
          noted_->changed.load(std::memory_order_relaxed), noted_->error.load(std::memory_order_relaxed)};
}

}  // namespace penstock
