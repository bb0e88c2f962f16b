#include "fuzz/mutation.h"

#include <algorithm>
#include <array>
#include <utility>

#include "fuzz/drawn_scan.h"

namespace penstock::fuzz {
namespace {

constexpr std::uint8_t kHuffmanTables = 0xC4, kEndOfImage = 0xD9, kScan = 0xDA, kRestartInterval = 0xDD;

void append(Bytes& to, std::span<const std::uint8_t> more) { to.insert(to.end(), more.begin(), more.end()); }

auto at(Bytes& bytes, std::size_t i) { return bytes.begin() + static_cast<std::ptrdiff_t>(i); }

// The positions of restart markers.
std::vector<std::size_t> restarts(const Bytes& data) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i + 1 < data.size(); ++i)
    if (data[i] == 0xFF && data[i + 1] >= 0xD0 && data[i + 1] <= 0xD7) found.push_back(i);
  return found;
}

}  // namespace

File File::parse(std::span<const std::uint8_t> bytes) {
  File file;
  std::size_t at = 2;
  while (at + 4 <= bytes.size()) {
    const std::uint8_t marker = bytes[at + 1];
    const std::size_t length = std::size_t{bytes[at + 2]} << 8 | bytes[at + 3], end = std::min(at + 2 + length, bytes.size());
    file.segments.push_back({marker, Bytes(bytes.begin() + static_cast<std::ptrdiff_t>(std::min(at + 4, end)),
                                           bytes.begin() + static_cast<std::ptrdiff_t>(end))});
    at = end;
    if (marker == kScan) break;
  }
  file.data.assign(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.end());
  return file;
}

Bytes File::bytes() const {
  Bytes all{0xFF, 0xD8};
  for (const Segment& segment : segments) {
    const std::size_t length = segment.payload.size() + 2;
    append(all, std::array<std::uint8_t, 4>{0xFF, segment.marker, static_cast<std::uint8_t>(length >> 8),
                                            static_cast<std::uint8_t>(length)});
    append(all, segment.payload);
  }
  append(all, data);
  return all;
}

std::vector<Segment*> File::with(std::initializer_list<std::uint8_t> markers) {
  std::vector<Segment*> found;
  for (Segment& segment : segments)
    if (std::find(markers.begin(), markers.end(), segment.marker) != markers.end()) found.push_back(&segment);
  return found;
}

Segment* Mutator::any(File& file, std::initializer_list<std::uint8_t> markers) {
  const auto found = file.with(markers);
  return found.empty() ? nullptr : found[below(found.size())];
}

Bytes Mutator::next() {
  File file = File::parse(corpus_[below(corpus_.size())]);
  if (one_in(3)) draw_scan(file);
  for (std::size_t changes = below(4) + (one_in(3) ? 0 : 1); changes > 0; --changes) change(file);
  return file.bytes();
}

void Mutator::change(File& file) {
  switch (below(16)) {
    case 0: case 1: case 2: return change_bits(file);
    case 3: return change_bytes(file);
    case 4: return shift_bits(file);
    case 5: return cut(file);
    case 6: return splice(file);
    case 7: return insert_marker(file);
    case 8: return change_restarts(file);
    case 9: return change_interval(file);
    case 10: case 11: return change_table(file);
    case 12: return change_frame(file);
    case 13: return change_scan_header(file);
    case 14: return change_segments(file);
    default: return draw_scan(file);
  }
}

void Mutator::change_bits(File& file) {
  if (file.data.empty()) return;
  for (std::size_t n = below(4); n-- > 0;)
    file.data[below(file.data.size())] ^= static_cast<std::uint8_t>(1u << below(8));
}

// Bytes written over, put in or left out; those of interest more often than others.
void Mutator::change_bytes(File& file) {
  static constexpr std::array<std::uint8_t, 5> interesting{0x00, 0xFF, 0xFE, 0x7F, 0x80};
  Bytes& data = file.data;
  for (std::size_t n = below(4) + 1; n-- > 0;) {
    const std::size_t place = below(data.size() + 1);
    const std::uint8_t value = one_in(2) ? interesting[below(interesting.size())] : byte();
    if (one_in(3)) data.insert(at(data, place), value);
    else if (place == data.size()) data.push_back(value);
    else if (one_in(2)) data[place] = value;
    else data.erase(at(data, place), at(data, std::min(data.size(), place + 1 + below(8))));
  }
}

// Bits put in or left out, so that every code behind them moves.
void Mutator::shift_bits(File& file) {
  BitWriter writer;
  const Bytes& data = file.data;
  const std::size_t place = below(data.size() * 8), bits = below(9) + 1;
  const bool insert = one_in(2);
  std::size_t i = 0;
  for (; i + 1 < data.size() && !(data[i] == 0xFF && data[i + 1] != 0); i += data[i] == 0xFF ? 2 : 1) {
    for (std::size_t bit = 0; bit < 8; ++bit) {
      if (insert && i * 8 + bit == place) writer.put(static_cast<std::uint32_t>(random_() & ((1u << bits) - 1)), static_cast<int>(bits));
      if (insert || i * 8 + bit < place || i * 8 + bit >= place + bits) writer.put(data[i] >> (7 - bit) & 1u, 1);
    }
  }
  Bytes shifted = writer.padded();
  append(shifted, std::span(data).subspan(i));
  file.data = std::move(shifted);
}

void Mutator::cut(File& file) {
  file.data.resize(below(file.data.size() + 1));
  if (!one_in(3)) append(file.data, std::array<std::uint8_t, 2>{0xFF, kEndOfImage});
}

// Data of the same file or another one in its own place.
void Mutator::splice(File& file) {
  const File other = File::parse(corpus_[below(corpus_.size())]);
  const Bytes from = one_in(2) ? file.data : other.data;
  const std::size_t first = below(from.size()), count = std::min(below(64) + 1, from.size() - first);
  file.data.insert(at(file.data, below(file.data.size() + 1)), from.begin() + static_cast<std::ptrdiff_t>(first),
                   from.begin() + static_cast<std::ptrdiff_t>(first + count));
}

void Mutator::insert_marker(File& file) {
  static constexpr std::array<std::uint8_t, 12> markers{0x00, 0xFF, 0xD0, 0xD3, 0xD7, 0xD8, 0xD9, 0xDA, 0xDC, 0xC4, 0xFE, 0x01};
  const std::array<std::uint8_t, 2> marker{0xFF, one_in(4) ? byte() : markers[below(markers.size())]};
  const std::size_t end = file.data.size();
  const std::size_t place = one_in(3) && end >= 2 ? end - 2 : below(end + 1);
  file.data.insert(at(file.data, place), marker.begin(), marker.end());
}

void Mutator::change_restarts(File& file) {
  const auto found = restarts(file.data);
  if (found.empty()) return insert_marker(file);
  const std::size_t place = found[below(found.size())];
  std::uint8_t& number = file.data[place + 1];
  switch (below(6)) {
    case 0: number = static_cast<std::uint8_t>(0xD0 + below(8)); break;
    case 1: std::swap(number, file.data[found[below(found.size())] + 1]); break;
    case 2: file.data.erase(at(file.data, place), at(file.data, place + 2)); break;
    case 3: file.data.insert(at(file.data, place), {0xFF, number}); break;
    case 4: file.data.insert(at(file.data, place), below(3) + 1, 0xFF); break;  // fill bytes
    default: file.data.insert(at(file.data, place), below(2) + 1, byte()); break;
  }
}

void Mutator::change_interval(File& file) {
  const auto interval = static_cast<std::uint16_t>(one_in(4) ? random_() : below(20));
  const Bytes payload{static_cast<std::uint8_t>(interval >> 8), static_cast<std::uint8_t>(interval)};
  if (Segment* const segment = any(file, {kRestartInterval})) {
    segment->payload = payload;
    return;
  }
  file.segments.insert(file.segments.begin() + static_cast<std::ptrdiff_t>(below(file.segments.size())),
                       {kRestartInterval, payload});
}

void Mutator::change_table(File& file) {
  Segment* const table = any(file, {kHuffmanTables});
  if (table == nullptr || table->payload.size() < 18) return;
  Bytes& payload = table->payload;
  const std::size_t symbols = payload.size() - 17;
  switch (below(7)) {
    case 0: payload[17 + below(symbols)] = byte(); break;
    case 1: payload[17 + below(symbols)] ^= static_cast<std::uint8_t>(1u << below(8)); break;
    case 2: std::swap(payload[17 + below(symbols)], payload[17 + below(symbols)]); break;
    case 3: payload[1 + below(16)] = static_cast<std::uint8_t>(below(6)); break;
    case 4: payload[0] = static_cast<std::uint8_t>(below(2) << 4 | below(4)); break;
    case 5: {
      const File other = File::parse(corpus_[below(corpus_.size())]);
      for (const Segment& segment : other.segments)
        if (segment.marker == kHuffmanTables && one_in(2)) payload = segment.payload;
      break;
    }
    default: move_codes(*table); break;
  }
  if (one_in(2)) draw_scan(file);  // else its data are hardly ever right
}

// Another length for some codes, the number of which stays: as often as not a prefix code again.
void Mutator::move_codes(Segment& table) {
  for (std::size_t n = below(6) + 1; n-- > 0;) {
    std::uint8_t& from = table.payload[1 + below(16)];
    std::uint8_t& to = table.payload[1 + below(16)];
    if (from == 0 || to == 0xFF) continue;
    --from;
    ++to;
  }
}

void Mutator::change_frame(File& file) {
  Segment* const frame = any(file, {0xC0, 0xC1, 0xC2});
  if (frame == nullptr || frame->payload.size() < 9) return;
  Bytes& payload = frame->payload;
  static constexpr std::array<std::uint8_t, 8> factors{0x11, 0x21, 0x12, 0x22, 0x11, 0x22, 0x41, 0x31};
  switch (below(6)) {
    case 0: case 1: {
      const std::size_t side = one_in(2) ? 2 : 4;
      payload[side] = static_cast<std::uint8_t>(payload[side] + below(33) - 16);
      break;
    }
    case 2: case 3: payload[7 + 3 * below((payload.size() - 6) / 3)] = factors[below(factors.size())]; break;
    case 4: frame->marker = static_cast<std::uint8_t>(0xC0 + below(3)); break;
    default: payload[below(payload.size())] = byte(); break;
  }
  if (one_in(2)) draw_scan(file);
}

void Mutator::change_scan_header(File& file) {
  Segment* const scan = any(file, {kScan});
  if (scan == nullptr || scan->payload.size() < 6) return;
  Bytes& payload = scan->payload;
  const std::size_t components = (payload.size() - 4) / 2;
  if (one_in(3)) payload[below(payload.size())] = byte();
  else if (one_in(2)) payload[2 + 2 * below(components)] = static_cast<std::uint8_t>(below(2) << 4 | below(2));
  else std::swap(payload[1 + 2 * below(components)], payload[1 + 2 * below(components)]);
  if (one_in(2)) draw_scan(file);
}

void Mutator::change_segments(File& file) {
  if (file.segments.empty()) return;
  const std::size_t place = below(file.segments.size());
  const auto segment = file.segments.begin() + static_cast<std::ptrdiff_t>(place);
  switch (below(4)) {
    case 0: file.segments.erase(segment); break;
    case 1: std::swap(*segment, file.segments[below(file.segments.size())]); break;
    case 2: file.segments.insert(segment, Segment(*segment)); break;
    default:
      if (!segment->payload.empty()) segment->payload[below(segment->payload.size())] = byte();
      break;
  }
}

// Data that the file's own tables decode, with codes of every length.
void Mutator::draw_scan(File& file) {
  if (auto data = drawn_scan(file, random_)) file.data = std::move(*data);
}

}  // namespace penstock::fuzz
