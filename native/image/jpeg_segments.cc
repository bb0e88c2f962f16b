#include "image/jpeg_segments.h"

#include <cstring>
#include <string_view>

namespace penstock {
namespace {

using namespace std::string_view_literals;

// Metadata that Pillow refuses the whole file for, of which it reads a part without looking whether it is there.
bool cut_off(std::uint8_t marker, std::string_view payload) {
  const auto is = [&](std::uint8_t wanted, std::string_view begins) { return marker == wanted && payload.starts_with(begins); };
  if (is(0xE0, "JFIF"sv) || is(0xEE, "Adobe"sv)) return payload.size() < 7;  // the version
  if (is(0xE2, "ICC_PROFILE\0"sv)) return payload.size() < 14;               // the number of fragments
  // A resource ends before its name, or looks like one that does.
  return is(0xED, "Photoshop 3.0\0"sv) && payload.substr(payload.size() - 6).starts_with("8BIM"sv);
}

}  // namespace

Outcome read_segments(const std::uint8_t* data, std::size_t size, JpegSegments& found) {
  if (size < 4 || data[0] != 0xFF || data[1] != 0xD8 || data[2] != 0xFF) return Outcome::to_python("not a JPEG");
  std::size_t at = 2;
  for (;;) {
    if (at >= size || data[at] != 0xFF) return Outcome::to_python("JPEG: bytes between markers");
    while (at < size && data[at] == 0xFF) ++at;  // fill bytes may precede a marker
    if (size - at < 3) return Outcome::to_python("JPEG: ends in its header");
    const std::uint8_t marker = data[at++];
    const std::size_t length = std::size_t{data[at]} << 8 | data[at + 1];
    if (marker < 0xC0 || (marker >= 0xD0 && marker <= 0xD9)) return Outcome::to_python("JPEG: unexpected marker");
    if (length < 2 || length > size - at) return Outcome::to_python("JPEG: ends in its header");
    if (cut_off(marker, {reinterpret_cast<const char*>(data) + at + 2, length - 2}))
      return Outcome::to_python("JPEG: metadata that are cut off");
    if (marker == 0xDA) {
      found.scan = at;
      found.end = at + length;
      break;
    }
    const bool frame = marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
    if (frame) found.frame = marker;  // libjpeg refuses a second one
    at += length;
  }
  // Extended sequential (C1) differs from baseline in tables only.
  if (found.frame == 0) return Outcome::to_python("JPEG: no frame before the first scan");
  if (found.frame > 0xC2) return Outcome::to_python("JPEG: lossless, hierarchical or arithmetic coding");
  return Outcome::success();
}

std::string application_segments(const std::uint8_t* data, std::size_t size) {
  std::string found;
  bool has_app1 = false;
  for (std::size_t at = 2; size - at >= 4;) {
    while (data[at + 1] == 0xFF) ++at;
    const std::uint8_t marker = data[at + 1];
    const std::size_t length = 2 + (std::size_t{data[at + 2]} << 8 | data[at + 3]);
    if (marker == 0xDA || length > size - at) break;
    if (marker >= 0xE0 && marker <= 0xEF) found.append(reinterpret_cast<const char*>(data) + at, length);
    has_app1 = has_app1 || marker == 0xE1;
    at += length;
  }
  return has_app1 ? found : std::string();
}

bool has_end(const std::uint8_t* data, std::size_t size, std::size_t from) {
  for (std::size_t i = size - 1; i > from; --i)
    if (data[i] == 0xD9 && data[i - 1] == 0xFF) return true;
  return false;
}

std::size_t end_of_scan(const std::uint8_t* data, std::size_t size, std::size_t at) {
  while (at + 1 < size) {
    const void* const found = std::memchr(data + at, 0xFF, size - 1 - at);
    if (found == nullptr) break;
    at = static_cast<std::size_t>(static_cast<const std::uint8_t*>(found) - data);
    const std::uint8_t next = data[at + 1];
    if (next != 0x00 && next != 0xFF && (next < 0xD0 || next > 0xD7)) return at;
    at += next == 0xFF ? 1 : 2;
  }
  return size;
}

}  // namespace penstock
