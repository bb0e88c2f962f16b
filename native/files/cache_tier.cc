#include "files/cache_tier.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <limits>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "files/crc.h"
#include "files/read_at.h"

namespace penstock {

// The first bytes of an index.
struct CacheTier::Header {
  std::uint64_t magic = kMagic, samples = 0;  // of which there are entries
  std::uint64_t reserved[6] = {};

  static constexpr std::uint64_t kMagic = 0x3130'4548'4341'4350;  // "PCACHE01", little-endian
};

// Of one sample: where its bytes should be. Nothing says that they are, but their checksum.
struct CacheTier::Entry {
  std::uint64_t place = 0;  // offset in the data file, plus 1; 0: the tier does not have the sample
  std::uint64_t facts = 0;  // length << 32 | CRC-32C; 0: likewise

  [[nodiscard]] bool is_kept() const noexcept { return place != 0 && facts != 0; }
};

// What this process, and those forked off from it, know of the tier.
struct CacheTier::Noted {
  std::atomic<std::uint64_t> hits, dropped;
  std::atomic<std::uint64_t> writing;  // bytes that are being added to the data file
  std::atomic<std::uint64_t> kept;     // samples, as counted when the data file had so many bytes:
  std::atomic<std::uint64_t> counted_at;
  std::atomic<int> error;
};

namespace {

constexpr std::uint64_t kHeaderBytes = 64, kEntryBytes = 16;
constexpr std::uint64_t kMaxLength = 0x7fff'f000;  // what one call writes: see write(2)
constexpr std::uint64_t kMaxOffset = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()) - kMaxLength;

constexpr std::uint64_t kUncounted = ~std::uint64_t{0};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);  // processes share them

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

// Of a sample's name and bytes: what another sample left at the same place does not pass for it.
std::uint32_t checksum(std::string_view name, std::span<const std::uint8_t> bytes) noexcept {
  const std::uint32_t of_name = crc32c(0, reinterpret_cast<const std::uint8_t*>(name.data()), name.size());
  return crc32c(of_name, bytes.data(), bytes.size());
}

// The size of an open file, 0 where it is not known.
std::uint64_t size_of(int fd) noexcept {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

// Adds bytes to the end of a file, in one step among all threads and processes that do: by its own description,
// whose position then says where they are. False, with errno, where they cannot be written whole.
bool append(int fd, std::span<const std::uint8_t> bytes, std::uint64_t& offset) noexcept {
  std::array<char, 32> path;
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", fd);
  const UniqueFd own(::open(path.data(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!own) return false;
  ssize_t written = 0;
  do {
    written = ::write(own.get(), bytes.data(), bytes.size());
  } while (written < 0 && errno == EINTR);
  if (written < 0) return false;
  const off_t end = ::lseek(own.get(), 0, SEEK_CUR);
  offset = static_cast<std::uint64_t>(end) - bytes.size();
  errno = ENOSPC;
  return static_cast<std::size_t>(written) == bytes.size() && end >= written;
}

UniqueFd memory_file(const char* name) {
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC));
  if (!file) fail("memfd_create");
  return file;
}

}  // namespace

CacheTier::CacheTier(UniqueFd index, UniqueFd data, std::uint64_t samples, std::uint64_t limit)
    : index_(std::move(index)), data_(std::move(data)), samples_(samples), limit_(limit) {
  static_assert(sizeof(Header) == kHeaderBytes && sizeof(Entry) == kEntryBytes);
  const int unwritable = prepare();
  void* const noted = ::mmap(nullptr, sizeof(Noted), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (noted == MAP_FAILED) fail("mmap");
  noted_ = static_cast<Noted*>(noted);
  noted_->error.store(unwritable, std::memory_order_relaxed);
}

CacheTier::~CacheTier() { ::munmap(noted_, sizeof(Noted)); }

std::shared_ptr<CacheTier> CacheTier::in_memory(std::uint64_t samples, std::uint64_t limit, int error) {
  auto tier = std::make_shared<CacheTier>(memory_file("penstock-cache-index"), memory_file("penstock-cache"), samples, limit);
  if (error != 0) tier->stop_writing(error);
  return tier;
}

// Gives a new index its size and its header; those that several processes give it at once are the same. Returns the
// errno of a file system that takes neither, 0 where it does.
int CacheTier::prepare() {
  if (samples_ > (kMaxOffset - kHeaderBytes) / kEntryBytes)
    throw std::invalid_argument("more samples than an index can hold");
  const std::uint64_t bytes = kHeaderBytes + samples_ * kEntryBytes;
  struct stat status {};
  if (::fstat(index_.get(), &status) != 0) fail("fstat");
  const auto found = static_cast<std::uint64_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || (found != 0 && found != bytes))
    throw std::invalid_argument("the index is not one of so many samples");
  if (found == 0 && ::ftruncate(index_.get(), static_cast<off_t>(bytes)) != 0) return errno;
  const Header wanted{.samples = samples_};
  Header header{.magic = 0};
  std::uint64_t done = 0;
  if (!read_at(index_.get(), reinterpret_cast<std::uint8_t*>(&header), sizeof header, 0, done)) fail("pread");
  if ((header.magic != wanted.magic && header.magic != 0) || (header.samples != samples_ && header.samples != 0))
    throw std::invalid_argument("the index is not one of so many samples");
  if (header.magic == wanted.magic && header.samples == samples_) return 0;
  const ssize_t written = ::pwrite(index_.get(), &wanted, sizeof wanted, 0);
  return written == sizeof wanted ? 0 : written < 0 ? errno : ENOSPC;
}

CacheTier::Entry CacheTier::entry(std::uint64_t sample) const noexcept {
  Entry found;
  const off_t at = static_cast<off_t>(kHeaderBytes + sample * kEntryBytes);
  return sample < samples_ && ::pread(index_.get(), &found, sizeof found, at) == sizeof found ? found : Entry{};
}

bool CacheTier::set_entry(std::uint64_t sample, const Entry& entry) noexcept {
  const off_t at = static_cast<off_t>(kHeaderBytes + sample * kEntryBytes);
  const ssize_t written = ::pwrite(index_.get(), &entry, sizeof entry, at);
  if (written != sizeof entry) stop_writing(written < 0 ? errno : ENOSPC);
  noted_->counted_at.store(kUncounted);
  return written == sizeof entry;
}

void CacheTier::stop_writing(int error) noexcept {
  noted_->error.store(error != 0 ? error : EIO, std::memory_order_relaxed);
}

bool CacheTier::find(std::uint64_t sample, std::string_view name, std::vector<std::uint8_t>& buffer,
                     std::span<const std::uint8_t>& bytes) {
  const Entry found = entry(sample);
  if (!found.is_kept()) return false;
  const std::uint64_t length = found.facts >> 32, offset = found.place - 1;
  std::uint64_t done = 0;
  // A length that was damaged must not take memory: the file has to be as long.
  bool whole = offset <= kMaxOffset && (length <= buffer.size() || offset + length <= size_of(data_.get()));
  if (whole) {
    if (length > buffer.size()) buffer.resize(length);
    whole = read_at(data_.get(), buffer.data(), length, offset, done) && done == length;
  }
  if (!whole || checksum(name, {buffer.data(), length}) != static_cast<std::uint32_t>(found.facts)) {
    noted_->dropped.fetch_add(1, std::memory_order_relaxed);
    static_cast<void>(set_entry(sample, {}));
    return false;
  }
  noted_->hits.fetch_add(1, std::memory_order_relaxed);
  bytes = {buffer.data(), length};
  return true;
}

bool CacheTier::open(std::uint64_t sample, std::string_view name, SampleFile& file) const noexcept {
  const Entry found = entry(sample);
  if (!found.is_kept()) return false;
  file = SampleFile::checked(SampleFile::part(data_.get(), found.place - 1, found.facts >> 32),
                             static_cast<std::uint32_t>(found.facts), checksum(name, {}));
  noted_->hits.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool CacheTier::has(std::uint64_t sample) const noexcept { return entry(sample).is_kept(); }

bool CacheTier::has_space(std::uint64_t bytes) const noexcept {
  const std::uint64_t used = size_of(data_.get());
  return noted_->error.load(std::memory_order_relaxed) == 0 && used <= limit_ && bytes <= limit_ - used &&
         bytes <= kMaxLength;
}

bool CacheTier::keep(std::uint64_t sample, std::string_view name, std::span<const std::uint8_t> bytes) noexcept {
  if (sample >= samples_ || bytes.empty() || bytes.size() > kMaxLength) return false;
  if (has(sample)) return true;  // another thread or process was first
  std::uint64_t offset = 0;
  const std::uint64_t writing = noted_->writing.fetch_add(bytes.size()) + bytes.size();
  const bool room = has_space(writing);  // beside what others write at this moment
  const bool written = room && append(data_.get(), bytes, offset);
  if (room && !written) stop_writing(errno);  // a full disk, a quota
  noted_->writing.fetch_sub(bytes.size());
  return written && set_entry(sample, {offset + 1, std::uint64_t{bytes.size()} << 32 | checksum(name, bytes)});
}

// The entries of all processes: what any of them keeps makes the data file longer.
std::uint64_t CacheTier::count() const noexcept {
  std::array<Entry, 4096> part;
  std::uint64_t kept = 0;
  for (std::uint64_t at = 0; at < samples_; at += part.size()) {
    const std::uint64_t entries = std::min<std::uint64_t>(part.size(), samples_ - at);
    std::uint64_t done = 0;
    auto* const to = reinterpret_cast<std::uint8_t*>(part.data());
    if (!read_at(index_.get(), to, entries * kEntryBytes, kHeaderBytes + at * kEntryBytes, done) || done == 0) break;
    const auto read = std::span(part).first(done / kEntryBytes);
    kept += static_cast<std::uint64_t>(std::count_if(read.begin(), read.end(), std::mem_fn(&Entry::is_kept)));
  }
  return kept;
}

CacheTier::Counts CacheTier::counts() const noexcept {
  const std::uint64_t used = size_of(data_.get());
  if (noted_->counted_at.exchange(used) != used) noted_->kept.store(count());
  return {noted_->kept.load(), used, limit_, noted_->hits.load(std::memory_order_relaxed),
          noted_->dropped.load(std::memory_order_relaxed), noted_->error.load(std::memory_order_relaxed)};
}

bool SampleCache::find(std::uint64_t sample, std::string_view name, std::vector<std::uint8_t>& buffer,
                       std::span<const std::uint8_t>& bytes) const {
  return std::any_of(tiers_.begin(), tiers_.end(),
                     [&](const auto& tier) { return tier->find(sample, name, buffer, bytes); });
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
  return without_throwing([&] {
    const std::string_view name = table.name(index);
    if (std::any_of(tiers_.begin(), tiers_.end(), [&](const auto& tier) { return tier->open(sample, name, file); }))
      return Outcome::success();
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
  });
}

}  // namespace penstock
