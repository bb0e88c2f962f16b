// The records of a torch.save archive, or of an .npz one: a zip file whose records are stored, not compressed.
//
// Format: PKWARE APPNOTE 6.3.9 (end records, central directory, local headers, zip64), as far as
// torch.save writes it. Whatever torch's own reader (miniz) might read in another way is refused.
// Threads: plain values and pure functions. Memory: a SplitFile points to bytes of its caller, and the string views of
// a TorchArchive and its StorageRecords point into those bytes. Nothing is allocated but room in a StorageRecords.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// Bytes of a file: [offset, offset + length).
struct FileRange {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// The parts of a file that have been read. A parser asks for a range; one that does not lie wholly
// inside a part is remembered in missing(), so that the caller can read it and parse again.
class SplitFile {
 public:
  explicit SplitFile(std::uint64_t size) : size_(size) {}

  // False when there is no room for another part.
  bool add(std::uint64_t offset, std::span<const std::uint8_t> bytes) {
    if (count_ == parts_.size()) return false;
    parts_[count_++] = {offset, bytes};
    return true;
  }

  // The first byte of the range, or nullptr. The range may end anywhere: it is checked here.
  const std::uint8_t* at(std::uint64_t offset, std::uint64_t length) {
    for (std::size_t i = 0; i < count_; ++i) {
      const Part& part = parts_[i];
      if (offset < part.offset) continue;
      const std::uint64_t skip = offset - part.offset;
      if (skip <= part.bytes.size() && length <= part.bytes.size() - skip) return part.bytes.data() + skip;
    }
    missing_ = {offset, length};
    return nullptr;
  }

  std::uint64_t size() const { return size_; }
  FileRange missing() const { return missing_; }

 private:
  struct Part {
    std::uint64_t offset = 0;
    std::span<const std::uint8_t> bytes;
  };
  std::uint64_t size_;
  std::array<Part, 8> parts_{};
  std::size_t count_ = 0;
  FileRange missing_;
};

// The reason of a parser that met a range outside the parts read. Compare by address.
extern const char* const kNotRead;

inline constexpr std::uint64_t kMaxDirectoryBytes = 16u << 20;
inline constexpr std::uint64_t kMaxPickleBytes = 1u << 20;

// Where the contents of the records of one archive lie. A record that is absent has offset 0.
struct TorchArchive {
  FileRange pickle;
  FileRange byteorder;
  FileRange version;
  FileRange alignment;         // `.storage_alignment`
  FileRange serialization_id;  // `.data/serialization_id`
  std::uint32_t pickle_crc = 0;  // as StorageRecord::crc
};

// A `data/<key>` record of an archive.
struct StorageRecord {
  std::string_view key;
  FileRange range;
  std::uint32_t crc = 0;  // CRC-32; 0: none, as torch.serialization.set_crc32_options(False) and skip_data() write
};
using StorageRecords = std::vector<StorageRecord>;

// Puts records in the order of their keys. False: two have the same key, or a key is not a number as torch.save has it.
[[nodiscard]] bool sort_records(StorageRecords& records);

// The record of that key among sorted ones, or nullptr.
[[nodiscard]] const StorageRecord* find_record(const StorageRecords& records, std::string_view key);

// Whether every byte is a printable ASCII character.
[[nodiscard]] bool printable_ascii(std::string_view text);

// A record of an archive that is not torch.save's.
struct ZipRecord {
  std::string name;
  std::uint64_t local = 0;  // offset of its local header
  std::uint64_t limit = 0;  // where the next record, or the directory, begins
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
};

// Appends the records of an archive in which they lie one behind another from its first byte on, under names of printable
// ASCII. nullptr, or why it is left to zipfile (a string with static storage duration). Throws std::bad_alloc.
[[nodiscard]] const char* list_zip_records(SplitFile& file, std::vector<ZipRecord>& records);

// Where the contents of such a record lie, by its local header; nullptr, or why it is left to zipfile.
[[nodiscard]] const char* locate_record(SplitFile& file, const ZipRecord& record, FileRange& contents);

// nullptr, or why the archive is left to torch.load (a string with static storage duration). `data/<key>` records are
// appended to `storages`. Throws std::bad_alloc.
[[nodiscard]] const char* read_zip_directory(SplitFile& file, TorchArchive& archive, StorageRecords& storages);

// What torch.load checks beside the pickle: nullptr where the format version and the byte order are the common ones and
// torch's notes about the file are text, else why the archive is left to torch.load.
[[nodiscard]] const char* check_notes(SplitFile& file, const TorchArchive& archive);

// The contents of a small record, or an empty view with `reason` set.
[[nodiscard]] std::string_view contents(SplitFile& file, const FileRange& range, const char*& reason);

}  // namespace penstock
