// Entropy-coded data drawn at random for the headers and tables of a file, so that decoders find no fault in it.
//
// Threads: functions of their arguments. Memory: results own theirs.
#pragma once

#include <cstdint>
#include <optional>
#include <random>

#include "fuzz/mutation.h"

namespace penstock::fuzz {

// An entropy-coded segment that is being written: bits, with stuffed bytes (F.1.2.3 of ITU-T T.81).
class BitWriter {
 public:
  void put(std::uint32_t bits, int count);  // the lowest ones, 0 to 32 of them
  // The segment, its last byte padded with ones; the next one begins behind it.
  void end_segment();
  void marker(std::uint8_t code);
  [[nodiscard]] Bytes padded();

 private:
  Bytes bytes_;
  std::uint64_t pending_ = 0;
  int count_ = 0;
};

// The data of all MCUs, restart markers and the end of the image. Nothing where a header or a table is missing or wrong, or
// the image has more than 64 MCUs.
[[nodiscard]] std::optional<Bytes> drawn_scan(File& file, std::mt19937_64& random);

}  // namespace penstock::fuzz
