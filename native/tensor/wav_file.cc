#include "tensor/wav_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

#include "files/little_endian.h"
#include "tensor/file_block.h"

namespace penstock {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr const char* kUnreadable = "the file cannot be read";
constexpr const char* kUnusual = "wav: chunks that are read in different ways";
constexpr std::size_t kHead = 4096;  // where the samples begin in it, nothing else is read of the header
constexpr std::uint32_t kMaxChannels = 16, kMaxRate = 400000;
constexpr std::uint64_t kMaxSize = 0x7fffffff;

bool is(const std::uint8_t* p, std::string_view text) { return std::memcmp(p, text.data(), text.size()) == 0; }

const char* read_format(Bytes chunk, WavFormat& format) {
  if (chunk.size() != 16 && chunk.size() != 18 && chunk.size() != 40) return kUnusual;
  const std::uint8_t* p = chunk.data();
  std::uint32_t tag = le16(p);
  const std::uint32_t block = le16(p + 12), bits = le16(p + 14);
  format.channels = le16(p + 2);
  format.rate = le32(p + 4);
  if (chunk.size() > 16 && le16(p + 16) != chunk.size() - 18) return kUnusual;
  if ((tag == 0xfffe) != (chunk.size() == 40)) return kUnusual;
  if (tag == 0xfffe) {  // extensible
    if (le16(p + 18) != bits) return "wav: fewer bits than a value has room for";
    if (!is(p + 26, {"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71", 14})) return "wav: another codec";
    format.speakers = le32(p + 20);
    tag = le16(p + 24);
  }
  if (tag == 1 && bits == 8) format.code = WavCode::u8;
  else if (tag == 1 && bits == 16) format.code = WavCode::s16;
  else if (tag == 1 && bits == 24) format.code = WavCode::s24;
  else if (tag == 1 && bits == 32) format.code = WavCode::s32;
  else if (tag == 3 && bits == 32) format.code = WavCode::f32;
  else return "wav: another codec";
  if (format.channels == 0 || format.channels > kMaxChannels || format.rate == 0 || format.rate > kMaxRate)
    return "wav: unusual channels or rate";
  if (block != format.frame_bytes() || le32(p + 8) != block * format.rate) return "wav: sizes that contradict each other";
  return nullptr;
}

// A list of texts: each chunk in it ends where the next one begins.
bool well_formed(Bytes list) {
  if (list.size() < 4 || !is(list.data(), "INFO")) return false;
  list = list.subspan(4);
  while (!list.empty()) {
    if (list.size() < 8 || list[0] != 'I') return false;
    const std::uint64_t padded = std::uint64_t{le32(list.data() + 4)} + (list[4] & 1);
    if (padded == 0 || padded > list.size() - 8) return false;
    for (int i = 1; i < 4; ++i)
      if (list[i] < 'A' || list[i] > 'Z') return false;
    list = list.subspan(8 + padded);
  }
  return true;
}

std::int32_t left_justified(const std::uint8_t* p, WavCode code) {
  switch (code) {
    case WavCode::u8: return static_cast<std::int32_t>((std::uint32_t{p[0]} ^ 0x80) << 24);
    case WavCode::s16: return static_cast<std::int32_t>(std::uint32_t{le16(p)} << 16);
    case WavCode::s24: return static_cast<std::int32_t>(std::uint32_t{le16(p)} << 8 | std::uint32_t{p[2]} << 24);
    default: return static_cast<std::int32_t>(le32(p));
  }
}

// Converts `count` values, `step` values of the file apart.
template <WavCode code, class Value>
void convert(const std::uint8_t* from, std::size_t step, std::size_t count, Value* to) {
  constexpr std::size_t bytes = kWavCodeBytes[static_cast<std::size_t>(code)];
  const auto loop = [&](std::size_t apart) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint8_t* const p = from + i * apart * bytes;
      if constexpr (code == WavCode::f32) to[i] = static_cast<Value>(std::bit_cast<float>(le32(p)));
      else if constexpr (sizeof(Value) == 2) to[i] = static_cast<Value>(left_justified(p, code) >> 16);
      else if constexpr (std::is_integral_v<Value>) to[i] = left_justified(p, code);
      else to[i] = static_cast<Value>(left_justified(p, code)) * static_cast<Value>(1.0 / 2147483648.0);
    }
  };
  if (step == 1) loop(1);  // loops of a known step are vectorised
  else if (step == 2) loop(2);
  else loop(step);
}

template <class Value>
void convert(WavCode code, const std::uint8_t* from, std::size_t step, std::size_t count, void* to, std::size_t at) {
  Value* const values = static_cast<Value*>(to) + at;
  switch (code) {
    case WavCode::u8: return convert<WavCode::u8>(from, step, count, values);
    case WavCode::s16: return convert<WavCode::s16>(from, step, count, values);
    case WavCode::s24: return convert<WavCode::s24>(from, step, count, values);
    case WavCode::s32: return convert<WavCode::s32>(from, step, count, values);
    case WavCode::f32:
      if constexpr (std::is_floating_point_v<Value>) return convert<WavCode::f32>(from, step, count, values);
  }
}

}  // namespace

const char* WavFile::open(const char* path) noexcept {
  UniqueFd file = open_for_loading(path);
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return "the file cannot be opened";
  return open(SampleFile(std::move(file)), static_cast<std::uint64_t>(status.st_size));
}

const char* WavFile::open(Bytes bytes) noexcept { return open(SampleFile::memory(bytes), bytes.size()); }

const char* WavFile::open(SampleFile file, std::uint64_t size) noexcept {
  file_ = std::move(file);
  std::uint64_t done = 0;
  if (!file_.read(scratch_.data(), kHead, 0, done)) return kUnreadable;
  format_ = {};
  return size < done ? kUnreadable : parse({scratch_.data(), done}, size);
}

// `head`: the first bytes of a file of `size` bytes.
const char* WavFile::parse(Bytes head, std::uint64_t size) noexcept {
  if constexpr (std::endian::native != std::endian::little) return "a big-endian machine";
  if (head.size() < 12 || !is(head.data(), "RIFF") || !is(head.data() + 8, "WAVE")) return "not a RIFF WAVE file";
  if (size > kMaxSize || le32(head.data() + 4) != size - 8) return "wav: another size than its header says";
  std::uint64_t at = 12;
  while (at + 8 <= head.size()) {
    const std::uint8_t* chunk = head.data() + at;
    const std::uint64_t bytes = le32(chunk + 4);  // padded to an even number
    at += 8;
    if (bytes > size - at) return "wav: truncated";
    if (is(chunk, "data")) {
      if (format_.channels == 0 || bytes == 0 || bytes % format_.frame_bytes() != 0) return kUnusual;
      if (size - at - bytes > (bytes & 1)) return "wav: chunks behind the samples";
      if (head.size() < at + 4 || is(head.data() + at, "wvpk") || is(head.data() + at, "OggS")) return kUnusual;
      format_.offset = at;
      format_.frames = bytes / format_.frame_bytes();
      return nullptr;
    }
    if (bytes % 2 != 0) return kUnusual;
    if (bytes > head.size() - at) return "wav: a header over 4 KiB";
    const Bytes body = head.subspan(at, bytes);
    if (is(chunk, "fmt ") && format_.channels == 0) {
      if (const char* reason = read_format(body, format_)) return reason;
    } else if (!(format_.channels != 0 && is(chunk, "fact") && bytes == 4) &&
               !(format_.channels != 0 && is(chunk, "PEAK") && bytes == 8 + 8 * format_.channels) &&
               !(is(chunk, "LIST") && well_formed(body))) {
      return kUnusual;
    }
    at += bytes;
  }
  return "wav: no samples";
}

const char* WavFile::plain() noexcept {
  if (format_.channels > 2) return "wav: more than two channels";
  if (format_.speakers != 0 && format_.speakers != (format_.channels == 1 ? 4u : 3u)) return "wav: other speakers";
  if (format_.code != WavCode::s16) return nullptr;
  std::uint64_t done = 0;
  if (!file_.read(scratch_.data(), scratch_.size(), format_.offset, done)) return kUnreadable;
  const std::string_view samples(reinterpret_cast<const char*>(scratch_.data()), done);
  // The words that bursts of S/PDIF and frames of DTS begin with.
  using namespace std::string_view_literals;
  for (const std::string_view sync : {"\x72\xf8\x1f\x4e"sv, "\x7f\xfe\x80\x01"sv, "\xfe\x7f\x01\x80"sv,
                                      "\x1f\xff\xe8\x00"sv, "\xff\x1f\x00\xe8"sv})
    if (samples.find(sync) != samples.npos) return "wav: samples that may be S/PDIF or DTS";
  return nullptr;
}

const char* WavFile::read(std::uint64_t begin, std::uint64_t frames, WavValue value, bool planar, void* to) noexcept {
  if (format_.code == WavCode::f32 && value != WavValue::f32 && value != WavValue::f64) return "wav: floats as integers";
  const std::size_t bytes = format_.frame_bytes(), most = scratch_.size() / bytes, channels = format_.channels;
  const bool as_stored = (format_.code == WavCode::s16 && value == WavValue::i16) ||
                         (format_.code == WavCode::s32 && value == WavValue::i32) ||
                         (format_.code == WavCode::f32 && value == WavValue::f32);
  if (as_stored && (!planar || channels == 1)) {
    std::uint64_t done = 0;
    const bool read = file_.read(static_cast<std::uint8_t*>(to), frames * bytes, format_.offset + begin * bytes, done);
    return read && done == frames * bytes ? nullptr : kUnreadable;
  }
  for (std::uint64_t first = 0; first < frames;) {
    const std::size_t count = std::min<std::uint64_t>(frames - first, most);
    std::uint64_t done = 0;
    if (!file_.read(scratch_.data(), count * bytes, format_.offset + (begin + first) * bytes, done) ||
        done != count * bytes)
      return kUnreadable;
    const std::size_t rows = planar ? channels : 1;
    for (std::size_t row = 0; row < rows; ++row) {
      const std::uint8_t* const from = scratch_.data() + row * (bytes / channels);
      const std::size_t step = planar ? channels : 1, values = planar ? count : count * channels;
      const std::size_t at = planar ? row * frames + first : first * channels;
      switch (value) {
        case WavValue::f64: convert<double>(format_.code, from, step, values, to, at); break;
        case WavValue::f32: convert<float>(format_.code, from, step, values, to, at); break;
        case WavValue::i32: convert<std::int32_t>(format_.code, from, step, values, to, at); break;
        case WavValue::i16: convert<std::int16_t>(format_.code, from, step, values, to, at); break;
      }
    }
    first += count;
  }
  return nullptr;
}

}  // namespace penstock
