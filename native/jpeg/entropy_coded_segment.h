// An entropy-coded segment (B.1.1.5 of ITU-T T.81): what lies between two markers, brought piece by piece into a small
// buffer without its stuffed bytes.
//
// Threads: an object belongs to one thread at a time. Memory: borrows the data, owns the buffer; it never reads outside of
// the data, whatever they hold.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "jpeg/bit_reader.h"

namespace penstock::jpeg {

class EntropyCodedSegment {
 public:
  // Bytes that may be read behind each position at which has_room() was true.
  static constexpr std::size_t kMargin = 1536;

  // The segment continues at data[at], at bit `skip` (0 to 7) of it.
  void start(std::span<const std::uint8_t> data, std::size_t at, unsigned skip) noexcept;

  // Whether kMargin bytes of this segment follow in the buffer, or more of it than was read so far and then its end.
  [[nodiscard, gnu::always_inline]] bool has_room(const BitReader& bits) const noexcept { return bits.next <= limit_; }
  // Makes room, which moves `bits`. False: more bits were taken than the segment has.
  [[nodiscard]] bool make_room(BitReader& bits) noexcept;
  // Whether more bits were taken than the segment has: those that lie behind its end are arbitrary.
  [[nodiscard]] bool overrun(const BitReader& bits) const noexcept {
    return closed_ && position(bits) > std::uint64_t{8} * end_;
  }

  // 8 x byte + bit of the next bit in the data.
  [[nodiscard]] std::uint64_t position_in_data(const BitReader& bits) const noexcept;
  // The marker behind the segment, if less than a byte lies between it and the next bit, as F.1.2.3 pads a segment.
  struct Marker {
    std::uint8_t code = 0;
    std::size_t end = 0;  // position behind it in the data
  };
  [[nodiscard]] std::optional<Marker> marker(BitReader& bits) noexcept;

  BitReader reader;  // at the start of the segment, and where whoever decodes puts it down

 private:
  static constexpr std::size_t kCapacity = 4096;

  // Of the next bit in the buffer.
  [[nodiscard]] std::uint64_t position(const BitReader& bits) const noexcept {
    return static_cast<std::uint64_t>(bits.next - bytes_.data()) * 8 - bits.left();
  }
  // How many bytes of ones the buffer holds from there on.
  [[nodiscard]] std::size_t stuffed_behind(std::size_t byte) const noexcept;
  void unstuff() noexcept;
  void unstuff_last() noexcept;

  std::span<const std::uint8_t> data_;
  std::size_t source_ = 0;  // position in the data behind what the buffer holds
  std::size_t end_ = 0;     // bytes of the segment in the buffer
  bool closed_ = false;     // the segment ends at source_
  std::size_t stuffed_count_ = 0;
  std::array<std::uint16_t, kCapacity> stuffed_;  // positions in the buffer of bytes of ones, in order
  const std::uint8_t* limit_ = nullptr;
  std::array<std::uint8_t, kCapacity + kMargin> bytes_{};
};

}  // namespace penstock::jpeg
