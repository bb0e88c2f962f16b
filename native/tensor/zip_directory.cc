#include "tensor/zip_directory.h"

#include <algorithm>

#include "files/little_endian.h"

namespace penstock {

const char* const kNotRead = "needs bytes that were not read";

namespace {

constexpr std::uint64_t kEndBytes = 22;
constexpr std::uint64_t kLocatorBytes = 20;
constexpr std::uint64_t kEnd64Bytes = 56;
constexpr std::uint64_t kEntryBytes = 46;
constexpr std::uint64_t kLocalBytes = 30;
constexpr std::uint64_t kMaxNameBytes = 511;  // miniz cuts longer names
constexpr std::uint16_t kVersionNeeded = 63;  // zipfile reads archives up to version 6.3
constexpr std::size_t kMaxRecords = 1000;
constexpr std::uint16_t kAllowedFlags = 0x0808;  // sizes in a data descriptor; names in UTF-8
constexpr std::uint32_t kSignatureEnd = 0x06054b50;
constexpr std::uint32_t kSignatureLocator = 0x07064b50;
constexpr std::uint32_t kSignatureEnd64 = 0x06064b50;
constexpr std::uint32_t kSignatureEntry = 0x02014b50;
constexpr std::uint32_t kSignatureLocal = 0x04034b50;

struct Directory {
  FileRange range;
  std::uint64_t count = 0;
};

// The zip64 end record and its locator, which stand right before the end record.
const char* read_end64(SplitFile& file, const std::uint8_t* end, Directory& directory) {
  if (file.size() < kEnd64Bytes + kLocatorBytes + kEndBytes) return "zip: truncated";
  const std::uint64_t start = file.size() - kEndBytes - kLocatorBytes - kEnd64Bytes;
  const std::uint8_t* p = file.at(start, kEnd64Bytes + kLocatorBytes);
  if (!p) return kNotRead;
  const std::uint8_t* locator = p + kEnd64Bytes;
  if (le32(locator + 4) != 0 || le64(locator + 8) != start || le32(locator + 16) != 1 ||
      le32(p) != kSignatureEnd64 || le64(p + 4) != kEnd64Bytes - 12 || le32(p + 16) != 0 || le32(p + 20) != 0)
    return "zip: unusual zip64 end record";
  directory.count = le64(p + 32);
  directory.range = {le64(p + 48), le64(p + 40)};
  // A field of the older record is the same number or all ones.
  const auto same = [](std::uint64_t narrow, std::uint64_t wide, std::uint64_t all_ones) {
    return narrow == wide || narrow == all_ones;
  };
  if (le64(p + 24) != directory.count || !same(le16(end + 10), directory.count, 0xffff) ||
      !same(le32(end + 12), directory.range.length, 0xffffffff) ||
      !same(le32(end + 16), directory.range.offset, 0xffffffff))
    return "zip: the two end records differ";
  if (directory.range.offset > start || directory.range.length != start - directory.range.offset)
    return "zip: central directory not where the end record says";
  return nullptr;
}

const char* find_directory(SplitFile& file, Directory& directory) {
  if (file.size() < kEndBytes + kLocatorBytes) return "zip: truncated";
  const std::uint64_t locator = file.size() - kEndBytes - kLocatorBytes;
  const std::uint8_t* p = file.at(locator, kLocatorBytes + kEndBytes);
  if (!p) return kNotRead;
  const std::uint8_t* end = p + kLocatorBytes;
  if (le32(end) != kSignatureEnd) return "zip: no end record at the end of the file (truncated?)";
  if (le16(end + 4) != 0 || le16(end + 6) != 0 || le16(end + 8) != le16(end + 10) || le16(end + 20) != 0)
    return "zip: several disks or a comment";
  if (le32(p) == kSignatureLocator) {
    if (const char* reason = read_end64(file, end, directory)) return reason;
  } else {
    directory.count = le16(end + 10);
    directory.range = {le32(end + 16), le32(end + 12)};
    const std::uint64_t limit = file.size() - kEndBytes;
    if (directory.range.offset > limit || directory.range.length != limit - directory.range.offset)
      return "zip: central directory not where the end record says";
  }
  if (directory.range.length > kMaxDirectoryBytes) return "zip: central directory over 16 MiB";
  if (directory.count == 0) return "zip: no records";
  return nullptr;
}

struct Entry {
  std::string_view name;
  std::uint64_t size = 0;
  std::uint64_t local = 0;  // offset of the local header
  std::uint32_t crc = 0;
};

// Sizes and offset that do not fit in 32 bits stand in the extra field with ID 1, in this order.
const char* read_zip64_extra(const std::uint8_t* extra, std::size_t length, Entry& entry, std::uint64_t& packed) {
  while (length >= 4) {
    const std::size_t id = le16(extra), bytes = le16(extra + 2);
    extra += 4;
    length -= 4;
    if (bytes > length) break;
    if (id != 1) {
      extra += bytes;
      length -= bytes;
      continue;
    }
    std::size_t left = bytes;
    for (std::uint64_t* field : {&entry.size, &packed, &entry.local}) {
      if (*field != 0xffffffff) continue;
      if (left < 8) return "zip: bad zip64 field";
      *field = le64(extra);
      extra += 8;
      left -= 8;
    }
    return nullptr;
  }
  return "zip: bad zip64 field";
}

// Reads the entry at p; `left` bytes of the directory remain. `used` is the length of the entry.
const char* read_entry(const std::uint8_t* p, std::uint64_t left, Entry& entry, std::uint64_t& used) {
  if (left < kEntryBytes || le32(p) != kSignatureEntry) return "zip: bad central directory";
  const std::uint64_t name = le16(p + 28), extra = le16(p + 30);
  used = kEntryBytes + name + extra;
  if (used > left) return "zip: bad central directory";
  if (le16(p + 10) != 0) return "zip: compressed record";
  if ((le16(p + 8) & ~kAllowedFlags) != 0) return "zip: encrypted or unusual record";
  if (le16(p + 32) != 0 || le16(p + 34) != 0) return "zip: unusual record";  // comment, disk
  if (name == 0 || name > kMaxNameBytes) return "zip: record name too long";
  entry.crc = le32(p + 16);
  std::uint64_t packed = le32(p + 20);
  entry.size = le32(p + 24);
  entry.local = le32(p + 42);
  entry.name = {reinterpret_cast<const char*>(p + kEntryBytes), name};
  if (packed == 0xffffffff || entry.size == 0xffffffff || entry.local == 0xffffffff)
    if (const char* reason = read_zip64_extra(p + kEntryBytes + name, extra, entry, packed)) return reason;
  if (packed != entry.size) return "zip: compressed record";
  return nullptr;
}

// Where the contents of an entry lie; they end before `limit`.
const char* locate(SplitFile& file, const Entry& entry, std::uint64_t limit, FileRange& contents) {
  const std::uint64_t fixed = kLocalBytes + entry.name.size();
  if (entry.local > limit || fixed > limit - entry.local) return "zip: record outside the file";
  const std::uint8_t* p = file.at(entry.local, fixed);
  if (!p) return kNotRead;
  if (le32(p) != kSignatureLocal || le16(p + 8) != 0 || le16(p + 26) != entry.name.size() ||
      std::string_view(reinterpret_cast<const char*>(p + kLocalBytes), entry.name.size()) != entry.name)
    return "zip: a record's two headers differ";
  const std::uint64_t start = entry.local + fixed + le16(p + 28);
  if (start > limit || entry.size > limit - start) return "zip: record outside the file";
  contents = {start, entry.size};
  return nullptr;
}

// Calls visit(entry, its bytes, directory) for each entry of the directory until it returns a reason.
template <class Visit>
const char* each_entry(SplitFile& file, const Visit& visit) {
  Directory directory;
  if (const char* reason = find_directory(file, directory)) return reason;
  const std::uint8_t* p = file.at(directory.range.offset, directory.range.length);
  if (!p) return kNotRead;
  std::uint64_t left = directory.range.length;
  for (std::uint64_t i = 0; i < directory.count; ++i) {
    Entry entry;
    std::uint64_t used = 0;
    if (const char* reason = read_entry(p, left, entry, used)) return reason;
    if (const char* reason = visit(entry, p, directory)) return reason;
    p += used;
    left -= used;
  }
  return left == 0 ? nullptr : "zip: bad central directory";
}

// Files one record under its name; `name` has lost the archive's prefix.
const char* place(std::string_view name, const FileRange& range, std::uint32_t crc, TorchArchive& archive,
                  StorageRecords& storages) {
  FileRange* slot = nullptr;
  if (name == "data.pkl") {
    slot = &archive.pickle;
    archive.pickle_crc = crc;
  } else if (name == "byteorder") {
    slot = &archive.byteorder;
  } else if (name == "version") {
    slot = &archive.version;
  } else if (name == ".storage_alignment") {
    slot = &archive.alignment;
  } else if (name == ".data/serialization_id") {
    slot = &archive.serialization_id;
  } else if (name.starts_with("data/")) {
    const std::string_view key = name.substr(5);
    if (key.empty() || key.ends_with('/')) return "zip: record that torch.save does not write";
    storages.push_back({key, range, crc});
    return nullptr;
  } else if (name == "constants.pkl" || name.starts_with("code/")) {
    return "a TorchScript archive";
  } else if (name.starts_with('.') && name != ".data/version" && !name.ends_with('/')) {
    return nullptr;  // notes of torch about the file, of no weight here
  } else {
    return "zip: record that torch.save does not write";
  }
  if (slot->offset != 0) return "zip: two records of one name";
  *slot = range;
  return nullptr;
}

bool less(std::string_view a, std::string_view b) { return a.size() != b.size() ? a.size() < b.size() : a < b; }

}  // namespace

bool printable_ascii(std::string_view text) {
  unsigned bad = 0;  // no early exit: the compiler takes many bytes at once
  for (const char c : text) bad |= static_cast<unsigned>(static_cast<unsigned char>(c - 0x20) > 0x7e - 0x20);
  return bad == 0;
}

const char* read_zip_directory(SplitFile& file, TorchArchive& archive, StorageRecords& storages) {
  archive = {};
  std::string_view prefix;  // of every record: the first one's name up to and with its first slash
  const auto visit = [&](const Entry& entry, const std::uint8_t* p, const Directory& directory) -> const char* {
    // Attributes: torch writes none (a directory bit would hide the contents from miniz).
    if (le32(p + 38) != 0) return "zip: unusual record";
    if (prefix.empty()) {
      const std::size_t slash = entry.name.find('/');
      if (slash == 0 || slash == entry.name.npos) return "zip: records are not in a folder, as torch.save has them";
      prefix = entry.name.substr(0, slash + 1);
      if (prefix.find('\0') != prefix.npos) return "zip: bad record name";
    }
    if (!entry.name.starts_with(prefix)) return "zip: records in several folders";
    const std::string_view name = entry.name.substr(prefix.size());
    if (!printable_ascii(name)) return "zip: bad record name";
    FileRange range;
    if (const char* reason = locate(file, entry, directory.range.offset, range)) return reason;
    return place(name, range, entry.crc, archive, storages);
  };
  if (const char* reason = each_entry(file, visit)) return reason;
  if (archive.pickle.offset == 0) return "zip: no data.pkl record";
  if (archive.version.offset == 0) return "zip: no version record";
  if (archive.pickle.length > kMaxPickleBytes) return "data.pkl over 1 MiB";
  return nullptr;
}

const char* list_zip_records(SplitFile& file, std::vector<ZipRecord>& records) {
  std::uint64_t end = 0;
  const auto visit = [&](const Entry& entry, const std::uint8_t* p, const Directory& directory) -> const char* {
    end = directory.range.offset;
    if (le16(p + 6) > kVersionNeeded || le16(p + 30) != 0) return "zip: unusual record";
    if (!printable_ascii(entry.name)) return "zip: bad record name";
    for (const ZipRecord& other : records)
      if (other.name == entry.name) return "zip: two records of one name";
    if (records.empty() ? entry.local != 0 : entry.local <= records.back().local) return "zip: records in another order";
    if (!records.empty()) records.back().limit = entry.local;
    if (records.size() == kMaxRecords) return "zip: more than 1,000 records";
    records.push_back({std::string(entry.name), entry.local, 0, entry.size, entry.crc});
    return nullptr;
  };
  if (const char* reason = each_entry(file, visit)) return reason;
  records.back().limit = end;
  return nullptr;
}

const char* locate_record(SplitFile& file, const ZipRecord& record, FileRange& contents) {
  return locate(file, {record.name, record.bytes, record.local, record.crc}, record.limit, contents);
}

std::string_view contents(SplitFile& file, const FileRange& range, const char*& reason) {
  const std::uint8_t* p = file.at(range.offset, range.length);
  if (!p) {
    reason = kNotRead;
    return {};
  }
  return {reinterpret_cast<const char*>(p), range.length};
}

const char* check_notes(SplitFile& file, const TorchArchive& archive) {
  const char* reason = nullptr;
  const std::string_view version = contents(file, archive.version, reason);
  if (reason) return reason;
  if (version != "3\n") return "zip: format version is not 3";
  if (archive.byteorder.offset != 0) {  // files of torch before 2.1 have none; torch.load takes them as little
    const std::string_view order = contents(file, archive.byteorder, reason);
    if (reason) return reason;
    if (order != "little") return "a big-endian file";
  }
  if (archive.alignment.offset != 0) {
    const std::string_view digits = contents(file, archive.alignment, reason);
    if (reason) return reason;
    if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != digits.npos)
      return "zip: bad alignment record";
  }
  if (archive.serialization_id.offset != 0) {
    const std::string_view id = contents(file, archive.serialization_id, reason);
    if (reason) return reason;
    if (!printable_ascii(id)) return "zip: bad serialization ID";
  }
  return nullptr;
}

bool sort_records(StorageRecords& records) {
  for (const StorageRecord& record : records)
    if (record.key.find_first_not_of("0123456789") != record.key.npos) return false;
  const auto before = [](const StorageRecord& a, const StorageRecord& b) { return less(a.key, b.key); };
  std::sort(records.begin(), records.end(), before);
  return std::adjacent_find(records.begin(), records.end(),
                            [](const StorageRecord& a, const StorageRecord& b) { return a.key == b.key; }) == records.end();
}

const StorageRecord* find_record(const StorageRecords& records, std::string_view key) {
  const auto at = std::lower_bound(records.begin(), records.end(), key,
                                   [](const StorageRecord& record, std::string_view name) { return less(record.key, name); });
  return at != records.end() && at->key == key ? &*at : nullptr;
}

}  // namespace penstock
