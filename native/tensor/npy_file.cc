#include "tensor/npy_file.h"

#include <sys/uio.h>

#include <bit>
#include <string_view>

namespace penstock {
namespace {

constexpr std::size_t kKeptScratch = 4u << 20;
constexpr std::size_t kMaxGuessed = 16u << 20;  // larger arrays are not worth one that is allocated in vain

}  // namespace

const char* NpyFile::read(const char* path, std::uint8_t* room) noexcept {
  const UniqueFd file = open_for_loading(path);
  return file ? read(file.get(), 0, room) : "the file cannot be opened";
}

const char* NpyFile::read(int fd, std::uint64_t start, std::uint8_t* room) noexcept {
  if (guess_.offset != 0 && read_guessed(fd, start, room)) return nullptr;
  std::size_t size = 0;
  if (const char* reason = read_whole(fd, start, scratch_, size)) return reason;
  return read({scratch_.bytes(), size});
}

const char* NpyFile::read(std::span<const std::uint8_t> bytes) noexcept {
  if (bytes.size() > kMaxWhole) return kTooLarge;
  if (const char* reason = parse(bytes, bytes.size())) return reason;
  elements_ = bytes.data() + header_.data_offset;
  guess_ = {};
  if (bytes_ <= kMaxGuessed && header_.data_offset <= head_.size())
    guess_ = {header_.spec.dtype, bytes_, header_.data_offset};
  return nullptr;
}

// One call reads the file, its elements straight into the room. False where it is another one than was guessed.
bool NpyFile::read_guessed(int fd, std::uint64_t start, std::uint8_t* room) noexcept {
  std::uint8_t behind = 0;  // a file that continues is read by the other way
  const std::array<iovec, 3> parts{{{head_.data(), guess_.offset}, {room, guess_.bytes}, {&behind, 1}}};
  const std::size_t size = guess_.offset + guess_.bytes;
  const ssize_t n = ::preadv(fd, parts.data(), static_cast<int>(parts.size()), static_cast<off_t>(start));
  if (n < 0 || static_cast<std::size_t>(n) != size) return false;
  if (parse({head_.data(), guess_.offset}, size) != nullptr) return false;
  elements_ = nullptr;
  return header_.spec.dtype == guess_.dtype && bytes_ == guess_.bytes && header_.data_offset == guess_.offset;
}

// `head`: the first bytes of a file of `size` bytes, its header at least.
const char* NpyFile::parse(std::span<const std::uint8_t> head, std::size_t size) noexcept {
  if constexpr (std::endian::native != std::endian::little) return "a big-endian machine";
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (text.starts_with("PK")) return "an .npz archive, whose arrays numpy reads one by one on demand";
  if (!text.starts_with(kNpyMagic)) return "not an .npy file";
  if (const char* reason = read_npy_header(text, header_)) return reason;
  std::int64_t total = 0;
  if (!checked_bytes(header_.spec, total)) return "an array of more than 63 bits";
  bytes_ = static_cast<std::size_t>(total);
  return bytes_ <= size - header_.data_offset ? nullptr : "npy: truncated";
}

void NpyFile::trim() noexcept {
  if (scratch_.room() > kKeptScratch) scratch_ = Block();
}

}  // namespace penstock
