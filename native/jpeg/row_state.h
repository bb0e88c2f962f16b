// Where an entropy decoder stands before the first MCU of a row: what it needs to continue there without the rows above.
//
// Threads: plain values. Memory: RowStates owns its states.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock::jpeg {

struct RowState {
  static constexpr std::uint32_t kUnknown = 0xFFFF'FFFF;

  std::uint32_t bit = kUnknown;      // position in Scan::data, 8 x byte + bit, stuffed bytes counted: up to 512 MB
  std::array<std::int16_t, 3> dc{};  // predictions of the DC coefficients (F.2.2.1)

  friend bool operator==(const RowState&, const RowState&) = default;
};

// The states of the first rows of an image, that of row 0 first; some may be unknown.
struct RowStates {
  std::vector<RowState> known;
};

// A stored state: `bit`, then each of `dc`, little-endian.
constexpr std::size_t kRowStateBytes = 10;

inline void store_row_state(const RowState& state, std::uint8_t* to) noexcept {
  for (int i = 0; i < 4; ++i) *to++ = static_cast<std::uint8_t>(state.bit >> (8 * i));
  for (const std::int16_t value : state.dc) {
    const auto bits = static_cast<std::uint16_t>(value);
    *to++ = static_cast<std::uint8_t>(bits);
    *to++ = static_cast<std::uint8_t>(bits >> 8);
  }
}

inline RowState load_row_state(const std::uint8_t* from) noexcept {
  RowState state{.bit = 0};
  for (int i = 0; i < 4; ++i) state.bit |= std::uint32_t{*from++} << (8 * i);
  for (std::int16_t& value : state.dc) {
    value = static_cast<std::int16_t>(from[0] | from[1] << 8);
    from += 2;
  }
  return state;
}

}  // namespace penstock::jpeg
