#include "files/cache_tier.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <limits>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "files/crc32c.h"
#include "files/read_at.h"

namespace penstock {

// The first bytes of an index.
struct CacheTier::Header {
  std::atomic<std::uint64_t> magic;    // 0 in a new index
  std::atomic<std::uint64_t> samples;  // of which there are entries
  std::atomic<std::uint64_t> used;     // bytes of the data file that are taken
  std::atomic<std::uint64_t> kept;     // samples
  std::uint64_t reserved[4];
};

// Of one sample. A `place` is only seen together with the bytes at it and their `facts`.
struct CacheTier::Entry {
  std::atomic<std::uint64_t> place;  // offset in the data file, plus 1; 0: the tier does not have the sample
  std::atomic<std::uint64_t> facts;  // length << 32 | CRC-32C
};

// What this process, and those forked off from it, know of the tier.
struct CacheTier::Noted {
  std::atomic<std::uint64_t> hits, dropped;
  // Of each sample whose bytes were compared: the checksums of its name and of both; 0: they were not.
  std::atomic<std::uint64_t> compared[1];
};

namespace {

constexpr std::uint64_t kMagic = 0x3130'4548'4341'4350;  // "PCACHE01", little-endian
constexpr std::uint64_t kHeaderBytes = 64, kEntryBytes = 16;
constexpr std::uint64_t kMaxLength = std::numeric_limits<std::uint32_t>::max();

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);  // processes share them

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

bool write_at(int fd, std::span<const std::uint8_t> bytes, std::uint64_t offset) noexcept {
  while (!bytes.empty()) {
    const std::size_t most = std::min<std::size_t>(bytes.size(), kMaxRead);
    const ssize_t n = ::pwrite(fd, bytes.data(), most, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return true;
}

// Of a sample's name and bytes: what another sample left at the same place does not pass for it.
std::uint32_t checksum(std::string_view name, std::span<const std::uint8_t> bytes) noexcept {
  const std::uint32_t of_name = crc32c(0, reinterpret_cast<const std::uint8_t*>(name.data()), name.size());
  return crc32c(of_name, bytes.data(), bytes.size());
}

// What stands for bytes that were compared: never 0.
std::uint64_t compared_as(std::uint32_t of_name, std::uint64_t facts) noexcept {
  return (std::uint64_t{of_name} << 32 | static_cast<std::uint32_t>(facts)) + 1;
}

UniqueFd memory_file(const char* name) {
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC));
  if (!file) fail("memfd_create");
  return file;
}

}  // namespace

std::uint64_t CacheTier::index_bytes(std::uint64_t samples) {
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  if (samples > (most - kHeaderBytes) / kEntryBytes) throw std::invalid_argument("more samples than an index can hold");
  return kHeaderBytes + samples * kEntryBytes;
}

CacheTier::CacheTier(UniqueFd index, UniqueFd data, std::uint64_t samples, std::uint64_t limit)
    : data_(std::move(data)), samples_(samples), limit_(limit), map_bytes_(index_bytes(samples)) {
  static_assert(sizeof(Header) == kHeaderBytes && sizeof(Entry) == kEntryBytes);
  struct stat status {};
  if (::fstat(index.get(), &status) != 0) fail("fstat");
  if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) != map_bytes_)
    throw std::invalid_argument("the index is not one of so many samples");
  map_ = ::mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, index.get(), 0);
  if (map_ == MAP_FAILED) fail("mmap");
  auto& header = *static_cast<Header*>(map_);
  // Every process that finds a new index writes the same values.
  std::uint64_t magic = 0, count = 0;
  const bool ours = (header.samples.compare_exchange_strong(count, samples) || count == samples) &&
                    (header.magic.compare_exchange_strong(magic, kMagic) || magic == kMagic);
  if (!ours) {
    ::munmap(map_, map_bytes_);
    throw std::invalid_argument("the index is not one of so many samples");
  }
  constexpr int kUntouched = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const noted = ::mmap(nullptr, noted_bytes(), PROT_READ | PROT_WRITE, kUntouched, -1, 0);
  if (noted == MAP_FAILED) {
    ::munmap(map_, map_bytes_);
    fail("mmap");
  }
  noted_ = static_cast<Noted*>(noted);
}

CacheTier::~CacheTier() {
  ::munmap(map_, map_bytes_);
  ::munmap(noted_, noted_bytes());
}

std::uint64_t CacheTier::noted_bytes() const noexcept { return sizeof(Noted) + samples_ * sizeof(noted_->compared[0]); }

void CacheTier::note_compared(std::uint64_t sample, std::uint32_t of_name, std::uint64_t facts) noexcept {
  noted_->compared[sample].store(compared_as(of_name, facts), std::memory_order_relaxed);
}

bool CacheTier::open(std::uint64_t sample, std::string_view name, std::vector<std::uint8_t>& buffer, SampleFile& file) {
  const Entry* const found = entry(sample);
  if (found == nullptr) return false;
  const std::uint64_t place = found->place.load(std::memory_order_acquire);
  const std::uint64_t facts = found->facts.load(std::memory_order_relaxed);
  if (place == 0 || facts == 0) return false;
  if (noted_->compared[sample].load(std::memory_order_relaxed) == compared_as(checksum(name, {}), facts)) {
    noted_->hits.fetch_add(1, std::memory_order_relaxed);
    file = SampleFile::part(data_.get(), place - 1, facts >> 32);
    return true;
  }
  std::span<const std::uint8_t> bytes;
  if (!find(sample, name, buffer, bytes)) return false;
  file = SampleFile::memory(bytes);
  return true;
}

std::shared_ptr<CacheTier> CacheTier::in_memory(std::uint64_t samples, std::uint64_t limit) {
  UniqueFd index = memory_file("penstock-cache-index");
  if (::ftruncate(index.get(), static_cast<off_t>(index_bytes(samples))) != 0) fail("ftruncate");
  return std::make_shared<CacheTier>(std::move(index), memory_file("penstock-cache"), samples, limit);
}

CacheTier::Entry* CacheTier::entry(std::uint64_t sample) const noexcept {
  if (sample >= samples_) return nullptr;
  return reinterpret_cast<Entry*>(static_cast<std::uint8_t*>(map_) + kHeaderBytes) + sample;
}

bool CacheTier::find(std::uint64_t sample, std::string_view name, std::vector<std::uint8_t>& buffer,
                     std::span<const std::uint8_t>& bytes) {
  Entry* const found = entry(sample);
  if (found == nullptr) return false;
  const std::uint64_t place = found->place.load(std::memory_order_acquire);
  const std::uint64_t facts = found->facts.load(std::memory_order_relaxed);
  if (place == 0 || facts == 0) return false;
  const std::uint64_t length = facts >> 32, offset = place - 1;
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()) - kMaxLength;
  std::uint64_t done = 0;
  if (offset <= most) {
    // A length that was damaged must not take memory: the file has to be as long.
    struct stat status {};
    if (length > buffer.size() &&
        (::fstat(data_.get(), &status) != 0 || offset + length > static_cast<std::uint64_t>(status.st_size))) {
      done = length + 1;
    } else {
      if (length > buffer.size()) buffer.resize(length);
      if (!read_at(data_.get(), buffer.data(), length, offset, done)) done = length + 1;
    }
  }
  if (offset > most || done != length || checksum(name, {buffer.data(), length}) != static_cast<std::uint32_t>(facts)) {
    noted_->dropped.fetch_add(1, std::memory_order_relaxed);
    found->place.store(0, std::memory_order_relaxed);
    found->facts.store(0, std::memory_order_relaxed);
    return false;
  }
  note_compared(sample, checksum(name, {}), facts);
  noted_->hits.fetch_add(1, std::memory_order_relaxed);
  bytes = {buffer.data(), length};
  return true;
}

bool CacheTier::has(std::uint64_t sample) const noexcept {
  const Entry* const found = entry(sample);
  return found != nullptr && found->place.load(std::memory_order_relaxed) != 0;
}

bool CacheTier::has_space(std::uint64_t bytes) const noexcept {
  const std::uint64_t used = static_cast<const Header*>(map_)->used.load(std::memory_order_relaxed);
  return error_.load(std::memory_order_relaxed) == 0 && used <= limit_ && bytes <= limit_ - used && bytes <= kMaxLength;
}

bool CacheTier::reserve(std::uint64_t bytes, std::uint64_t& offset) noexcept {
  auto& used = static_cast<Header*>(map_)->used;
  offset = used.load(std::memory_order_relaxed);
  while (offset <= limit_ && bytes <= limit_ - offset)
    if (used.compare_exchange_weak(offset, offset + bytes, std::memory_order_relaxed)) return true;
  return false;
}

bool CacheTier::keep(std::uint64_t sample, std::string_view name, std::span<const std::uint8_t> bytes) noexcept {
  Entry* const kept = entry(sample);
  if (kept == nullptr || bytes.empty() || !has_space(bytes.size())) return false;
  if (kept->place.load(std::memory_order_relaxed) != 0) return true;  // another thread or process was first
  std::uint64_t offset = 0;
  if (!reserve(bytes.size(), offset)) return false;
  if (!write_at(data_.get(), bytes, offset)) {  // a full disk, a quota
    error_.store(errno != 0 ? errno : EIO, std::memory_order_relaxed);
    return false;
  }
  const std::uint64_t facts = std::uint64_t{bytes.size()} << 32 | checksum(name, bytes);
  std::uint64_t before = 0;
  // Two that keep one sample at once have the same bytes, unless the file was changed between.
  if (!kept->facts.compare_exchange_strong(before, facts, std::memory_order_relaxed) && before != facts) return false;
  note_compared(sample, checksum(name, {}), facts);
  kept->place.store(offset + 1, std::memory_order_release);
  static_cast<Header*>(map_)->kept.fetch_add(1, std::memory_order_relaxed);
  return true;
}

CacheTier::Counts CacheTier::counts() const noexcept {
  const auto& header = *static_cast<const Header*>(map_);
  return {header.kept.load(std::memory_order_relaxed), header.used.load(std::memory_order_relaxed), limit_,
          noted_->hits.load(std::memory_order_relaxed),       noted_->dropped.load(std::memory_order_relaxed),
          error_.load(std::memory_order_relaxed)};
}

bool SampleCache::find(std::uint64_t sample, std::string_view name, std::vector<std::uint8_t>& buffer,
                       std::span<const std::uint8_t>& bytes) const {
  return std::any_of(tiers_.begin(), tiers_.end(),
                     [&](const auto& tier) { return tier->find(sample, name, buffer, bytes); });
}

bool SampleCache::open(std::uint64_t sample, std::string_view name, std::vector<std::uint8_t>& buffer,
                       SampleFile& file) const {
  return std::any_of(tiers_.begin(), tiers_.end(),
                     [&](const auto& tier) { return tier->open(sample, name, buffer, file); });
}

bool SampleCache::has_space(std::uint64_t bytes) const noexcept {
  return std::any_of(tiers_.begin(), tiers_.end(), [bytes](const auto& tier) { return tier->has_space(bytes); });
}

bool SampleCache::has(std::uint64_t sample) const noexcept {
  return std::any_of(tiers_.begin(), tiers_.end(), [&](const auto& tier) { return tier->has(sample); });
}

void SampleCache::keep(std::uint64_t sample, std::string_view name, std::span<const std::uint8_t> bytes) const noexcept {
  std::any_of(tiers_.begin(), tiers_.end(), [&](const auto& tier) { return tier->keep(sample, name, bytes); });
}

Outcome SampleCache::open(std::uint64_t sample, const FileTable& table, std::size_t index,
                          std::vector<std::uint8_t>& buffer, SampleFile& file) const {
  try {
    const std::string_view name = table.name(index);
    if (open(sample, name, buffer, file)) return Outcome::success();
    if (const Outcome opened = table.open(index, file); !opened.ok()) return opened;
    std::uint64_t size = 0, done = 0;
    if (!file.size(size).ok() || size == 0) return Outcome::success();  // whoever reads it says why not
    if (!has_space(size)) return Outcome::success();
    if (size > buffer.size()) buffer.resize(size);
    // A file that shrinks or grows while it is read is left to whoever reads it.
    if (!file.read(buffer.data(), size, 0, done) || done != size) return Outcome::success();
    const std::span<const std::uint8_t> bytes(buffer.data(), size);
    keep(sample, name, bytes);
    file = SampleFile::memory(bytes);
    return Outcome::success();
  } catch (const std::exception&) {  // bad_alloc, or a size no vector can have
    return Outcome::to_python("out of memory");
  }
}

}  // namespace penstock
