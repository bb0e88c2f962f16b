#include "tensor/saved_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "files/crc.h"
#include "files/unique_fd.h"

namespace penstock {
namespace {

constexpr std::size_t kKeptScratch = 4u << 20;
constexpr std::size_t kKeptObjects = 1u << 14;
constexpr std::string_view kZipMagic{"PK\x03\x04", 4};

// A storage of most of the file stays in the memory that the file was read into; others are copied out of it, so that
// one that is kept does not keep the others' memory.
bool stays(const PickledStorage& storage, std::size_t file_bytes) {
  return storage.range.offset % Block::kAlignment == 0 && storage.range.length >= file_bytes - file_bytes / 4;
}

}  // namespace

const char* SavedFile::read(const char* path) noexcept {
  objects_.clear();
  const UniqueFd file = open_for_loading(path);
  return file ? read(file.get(), 0) : "the file cannot be opened";
}

const char* SavedFile::read(int fd, std::uint64_t start) noexcept {
  objects_.clear();
  std::size_t size = 0;
  if (const char* reason = read_whole(fd, start, scratch_, size)) return reason;
  try {
    return parse({scratch_.bytes(), size}, &scratch_);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

const char* SavedFile::read(std::span<const std::uint8_t> bytes) noexcept {
  objects_.clear();
  if (bytes.size() > kMaxWhole) return kTooLarge;
  try {
    return parse(bytes, nullptr);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

// `own`: the block that the bytes lie in from its start, or null where they are somebody else's.
const char* SavedFile::parse(std::span<const std::uint8_t> bytes, Block* own) {
  if constexpr (std::endian::native != std::endian::little) return "a big-endian machine";
  storages_.clear();
  records_.clear();
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()), std::min<std::size_t>(bytes.size(), 4));
  if (start.starts_with("\x80")) return "a pickle or a file of torch before 1.6 (no zip archive)";
  if (start != kZipMagic) return "not a torch.save archive";
  SplitFile file(bytes.size());
  file.add(0, bytes);
  TorchArchive archive;
  if (const char* reason = read_zip_directory(file, archive, records_)) return reason;
  if (const char* reason = check_notes(file, archive)) return reason;
  if (!sort_records(records_)) return "zip: storages that torch.save does not write";
  const char* reason = nullptr;
  const std::string_view pickle = contents(file, archive.pickle, reason);
  if (reason) return reason;
  if (archive.pickle_crc != 0 && crc32(0, bytes.data() + archive.pickle.offset, pickle.size()) != archive.pickle_crc)
    return "data.pkl does not match its CRC-32";
  if ((reason = objects_.read(pickle, records_))) return reason;
  end_ = archive.pickle.offset + archive.pickle.length;
  for (const PickledStorage& storage : objects_.storages())
    if (storage.range.length != 0) end_ = storage.range.offset + storage.range.length;
  return place_storages(bytes, own);
}

const char* SavedFile::place_storages(std::span<const std::uint8_t> bytes, Block* own) {
  std::uint64_t total = 0;
  for (const PickledStorage& storage : objects_.storages()) total += storage.range.length;  // each lies inside the file
  if (total > bytes.size()) return "zip: storages that overlap";
  storages_.resize(objects_.storages().size());
  std::size_t staying = storages_.size();
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    const PickledStorage& storage = objects_.storages()[i];
    SavedStorage& placed = storages_[i];
    placed.bytes = storage.range.length;
    if (!storage.wanted) continue;
    if (own != nullptr && stays(storage, own->room())) {
      staying = i;
      placed.offset = storage.range.offset;
      continue;
    }
    if (!placed.block.allocate(placed.bytes)) return kNoMemory;
    std::memcpy(placed.block.bytes(), bytes.data() + storage.range.offset, placed.bytes);
  }
  if (staying != storages_.size()) storages_[staying].block = std::move(*own);  // there is one: it has most of the file
  return nullptr;
}

void SavedFile::trim() noexcept {
  storages_.clear();
  if (scratch_.room() > kKeptScratch) scratch_ = Block();
  if (objects_.objects().size() > kKeptObjects) objects_ = PickledObjects();
}

}  // namespace penstock
