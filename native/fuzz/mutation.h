// JPEG files changed at random at the level of their structure: segments, tables, entropy-coded data, restart markers.
//
// Threads: an object belongs to one thread at a time. Memory: objects own all they hold; the corpus is borrowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace penstock::fuzz {

using Bytes = std::vector<std::uint8_t>;

// A marker segment (B.1.1.4 of ITU-T T.81); `payload` follows its length.
struct Segment {
  std::uint8_t marker = 0;
  Bytes payload;
};

// A file as its segments up to the first scan header, that one included, and what follows.
struct File {
  std::vector<Segment> segments;
  Bytes data;

  static File parse(std::span<const std::uint8_t> bytes);
  [[nodiscard]] Bytes bytes() const;
  // The segments with one of these markers, the first one first.
  [[nodiscard]] std::vector<Segment*> with(std::initializer_list<std::uint8_t> markers);
};

class Mutator {
 public:
  // The same file for the same corpus and seed.
  Mutator(std::span<const Bytes> corpus, std::uint64_t seed) : corpus_(corpus), random_(seed) {}

  // A file of the corpus after one to four changes.
  [[nodiscard]] Bytes next();

 private:
  [[nodiscard]] std::size_t below(std::size_t n) { return n == 0 ? 0 : random_() % n; }
  [[nodiscard]] bool one_in(std::size_t n) { return below(n) == 0; }
  [[nodiscard]] std::uint8_t byte() { return static_cast<std::uint8_t>(random_()); }
  [[nodiscard]] Segment* any(File& file, std::initializer_list<std::uint8_t> markers);

  void change(File& file);
  void change_bits(File& file);
  void change_bytes(File& file);
  void shift_bits(File& file);
  void cut(File& file);
  void splice(File& file);
  void insert_marker(File& file);
  void change_restarts(File& file);
  void change_interval(File& file);
  void change_table(File& file);
  void move_codes(Segment& table);
  void change_frame(File& file);
  void change_scan_header(File& file);
  void change_segments(File& file);
  void draw_scan(File& file);

  std::span<const Bytes> corpus_;
  std::mt19937_64 random_;
};

}  // namespace penstock::fuzz
