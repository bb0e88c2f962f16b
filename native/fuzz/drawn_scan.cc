#include "fuzz/drawn_scan.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <utility>

namespace penstock::fuzz {
namespace {

constexpr std::size_t kMostMcus = 64;

struct Code {
  std::uint32_t bits = 0;
  int length = 0, symbol = 0;
};
using Codes = std::vector<Code>;

struct Component {
  int h = 0, v = 0;
  const Codes* dc = nullptr;
  const Codes* ac = nullptr;
};

using Tables = std::array<Codes, 8>;  // DC 0 to 3, AC 0 to 3

bool end_of_block(const Code& code) { return (code.symbol & 15) == 0 && code.symbol != 0xF0; }

// Annex C. False: more codes than the lengths allow, or than there are symbols.
bool read_tables(const Bytes& payload, Tables& tables) {
  std::size_t at = 0;
  while (at + 17 <= payload.size()) {
    const std::uint8_t place = payload[at];
    if ((place & 0x0F) > 3 || place >> 4 > 1) return false;
    Codes& codes = tables[static_cast<std::size_t>((place >> 4) * 4 + (place & 3))];
    codes.clear();
    std::uint32_t bits = 0;
    std::size_t symbol = at + 17;
    for (int length = 1; length <= 16; ++length, bits <<= 1)
      for (int i = payload[at + static_cast<std::size_t>(length)]; i > 0; --i) {
        if (symbol >= payload.size() || bits >> length != 0) return false;
        codes.push_back({bits++, length, payload[symbol++]});
      }
    at = symbol;
  }
  return true;
}

class Drawing {
 public:
  Drawing(File& file, std::mt19937_64& random) : file_(file), random_(random) {}

  bool read_headers();
  Bytes draw();

 private:
  std::size_t below(std::size_t n) { return random_() % n; }
  void put(const Code& code) { writer_.put(code.bits, code.length); }
  // Additional bits; returns their value (F.2.2.1).
  int put_value(int size) {
    const auto bits = static_cast<std::uint32_t>(random_() & ((1u << size) - 1));
    writer_.put(bits, size);
    return size == 0 || bits >> (size - 1) != 0 ? static_cast<int>(bits) : static_cast<int>(bits) - (1 << size) + 1;
  }
  // Short codes as often as all others.
  const Code& any(const Codes& codes) { return codes[below(below(2) == 0 ? std::min<std::size_t>(codes.size(), 6) : codes.size())]; }
  void draw_block(const Component& component, int& prediction);

  File& file_;
  std::mt19937_64& random_;
  Tables tables_;
  std::vector<Component> components_;
  std::size_t mcus_ = 0, interval_ = 0;
  BitWriter writer_;
};

bool Drawing::read_headers() {
  for (Segment* const segment : file_.with({0xC4}))
    if (!read_tables(segment->payload, tables_)) return false;
  for (Segment* const segment : file_.with({0xDD}))
    if (segment->payload.size() == 2) interval_ = static_cast<std::size_t>(segment->payload[0] << 8 | segment->payload[1]);

  const auto frames = file_.with({0xC0, 0xC1}), scans = file_.with({0xDA});
  if (frames.empty() || scans.empty()) return false;
  const Bytes& frame = frames[0]->payload;
  const Bytes& scan = scans[0]->payload;
  if (frame.size() < 6 || frame.size() != 6 + 3 * std::size_t{frame[5]} || scan.empty()) return false;
  if (scan.size() != 4 + 2 * std::size_t{scan[0]}) return false;
  std::size_t most_h = 1, most_v = 1;
  for (std::size_t i = 6; i < frame.size(); i += 3) {
    most_h = std::max<std::size_t>(most_h, frame[i + 1] >> 4);
    most_v = std::max<std::size_t>(most_v, frame[i + 1] & 15);
  }
  for (std::size_t i = 0; i < scan[0]; ++i) {
    const std::uint8_t id = scan[1 + 2 * i], table = scan[2 + 2 * i];
    std::size_t at = 6;
    while (at < frame.size() && frame[at] != id) at += 3;
    if (at >= frame.size()) return false;
    const Component component{frame[at + 1] >> 4, frame[at + 1] & 15, &tables_[(table >> 4) & 3], &tables_[4u + (table & 3u)]};
    if (component.dc->empty() || component.ac->empty()) return false;
    components_.push_back(component);
  }
  const std::size_t height = static_cast<std::size_t>(frame[1] << 8 | frame[2]), width = static_cast<std::size_t>(frame[3] << 8 | frame[4]);
  mcus_ = (width + 8 * most_h - 1) / (8 * most_h) * ((height + 8 * most_v - 1) / (8 * most_v));
  return mcus_ > 0 && mcus_ <= kMostMcus;
}

void Drawing::draw_block(const Component& component, int& prediction) {
  const Code* code = &any(*component.dc);
  for (int tries = 0; tries < 8 && (code->symbol > 15 || std::abs(prediction) + (1 << std::min(code->symbol, 20)) > 0x7FFF); ++tries)
    code = &any(*component.dc);
  put(*code);
  prediction += put_value(std::min(code->symbol, 15));

  const auto end = std::find_if(component.ac->begin(), component.ac->end(), end_of_block);
  static constexpr std::array<std::size_t, 4> lengths{2, 8, 40, 1000};
  const std::size_t length = lengths[below(lengths.size())];
  for (int at = 0; at < 63;) {
    if (end != component.ac->end() && below(length) == 0) return put(*end);
    code = &any(*component.ac);
    // A coefficient behind the last one is wrong; it is drawn now and then.
    for (int tries = 0; tries < 40 && at + (code->symbol >> 4) + 1 > 63 && below(200) != 0; ++tries) code = &any(*component.ac);
    put(*code);
    if (end_of_block(*code)) return;
    put_value(code->symbol & 15);
    at += (code->symbol >> 4) + 1;
  }
}

Bytes Drawing::draw() {
  std::vector<int> predictions(components_.size());
  for (std::size_t mcu = 0; mcu < mcus_; ++mcu) {
    if (interval_ != 0 && mcu != 0 && mcu % interval_ == 0) {
      writer_.end_segment();
      writer_.marker(static_cast<std::uint8_t>(0xD0 + (mcu / interval_ - 1) % 8));
      std::fill(predictions.begin(), predictions.end(), 0);
    }
    for (std::size_t c = 0; c < components_.size(); ++c) {
      const int blocks = components_.size() == 1 ? 1 : components_[c].h * components_[c].v;
      for (int i = 0; i < blocks; ++i) draw_block(components_[c], predictions[c]);
    }
  }
  writer_.end_segment();
  writer_.marker(0xD9);
  return writer_.padded();
}

}  // namespace

void BitWriter::put(std::uint32_t bits, int count) {
  pending_ = pending_ << count | bits;
  count_ += count;
  while (count_ >= 8) {
    count_ -= 8;
    const auto byte = static_cast<std::uint8_t>(pending_ >> count_);
    bytes_.push_back(byte);
    if (byte == 0xFF) bytes_.push_back(0);
  }
}

void BitWriter::end_segment() {
  if (count_ > 0) put(0xFFu >> count_, 8 - count_);
}

void BitWriter::marker(std::uint8_t code) {
  bytes_.push_back(0xFF);
  bytes_.push_back(code);
}

Bytes BitWriter::padded() {
  end_segment();
  return std::move(bytes_);
}

std::optional<Bytes> drawn_scan(File& file, std::mt19937_64& random) {
  Drawing drawing(file, random);
  if (!drawing.read_headers()) return std::nullopt;
  return drawing.draw();
}

}  // namespace penstock::fuzz
