#include "tensor/npz_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <new>
#include <string_view>

#include "files/crc.h"
#include "files/read_at.h"
#include "tensor/file_block.h"

namespace penstock {
namespace {

constexpr std::size_t kTail = 2048;  // holds the directory of most archives
constexpr std::size_t kHead = 1024;  // of a record: its local header and numpy's

}  // namespace

const char* list_npz(int fd, std::vector<ZipRecord>& records) noexcept try {
  if constexpr (std::endian::native != std::endian::little) return "a big-endian machine";
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return "not a regular file";
  const std::uint64_t size = static_cast<std::uint64_t>(status.st_size);
  std::array<std::uint8_t, kTail> tail;
  std::vector<std::uint8_t> directory;
  std::array<char, 4> magic;  // by which numpy.load knows an archive
  std::uint64_t begin = size - std::min<std::uint64_t>(size, kTail), done = 0;
  if (!read_at(fd, reinterpret_cast<std::uint8_t*>(magic.data()), magic.size(), 0, done) || done != magic.size() ||
      std::string_view(magic.data(), magic.size()) != "PK\x03\x04")
    return "not an .npz archive";
  if (!read_at(fd, tail.data(), size - begin, begin, done) || done != size - begin) return "the file cannot be read";
  SplitFile file(size);
  file.add(begin, {tail.data(), done});
  const char* reason = list_zip_records(file, records);
  if (reason != kNotRead) return reason;
  begin = file.missing().offset;  // a larger directory: it and all behind it
  if (begin > size || size - begin > kMaxDirectoryBytes) return "zip: central directory over 16 MiB";
  directory.resize(size - begin);
  if (!read_at(fd, directory.data(), directory.size(), begin, done) || done != directory.size())
    return "the file cannot be read";
  SplitFile more(size);
  more.add(begin, directory);
  records.clear();
  reason = list_zip_records(more, records);
  return reason == kNotRead ? "zip: bad central directory" : reason;
} catch (const std::bad_alloc&) {
  return kNoMemory;
}

const char* find_npz_array(int fd, const ZipRecord& record, NpzArray& array) noexcept {
  std::array<std::uint8_t, kHead> head;
  std::uint64_t done = 0;
  if (!read_at(fd, head.data(), std::min<std::uint64_t>(kHead, record.limit - record.local), record.local, done))
    return "the file cannot be read";
  SplitFile file(record.limit);
  file.add(record.local, {head.data(), done});
  FileRange range;
  if (const char* reason = locate_record(file, record, range)) return reason == kNotRead ? "zip: long headers" : reason;
  const std::uint64_t skip = range.offset - record.local;
  if (skip > done) return "zip: long headers";
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + skip, std::min(done - skip, range.length));
  if (!text.starts_with(kNpyMagic)) return "a record that is not an .npy file";
  if (const char* reason = read_npy_header(text, array.header)) return reason;
  std::int64_t bytes = 0;
  if (!checked_bytes(array.header.spec, bytes)) return "an array of more than 63 bits";
  if (static_cast<std::uint64_t>(bytes) != range.length - array.header.data_offset) return "npy: truncated, or longer";
  array.bytes = static_cast<std::size_t>(bytes);
  array.offset = range.offset + array.header.data_offset;
  array.crc_before = crc32(0, head.data() + skip, array.header.data_offset);
  array.crc = record.crc;
  return nullptr;
}

const char* read_npz_array(int fd, const NpzArray& array, std::uint8_t* elements) noexcept {
  std::uint64_t done = 0;
  if (!read_at(fd, elements, array.bytes, array.offset, done) || done != array.bytes) return "the file cannot be read";
  return crc32(array.crc_before, elements, array.bytes) == array.crc ? nullptr : "zip: another CRC-32";
}

}  // namespace penstock
