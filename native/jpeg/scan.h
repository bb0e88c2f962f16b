// What an entropy decoder needs to know of a sequential JPEG: its frame header, its one scan header and its Huffman
// tables. Section numbers are those of ITU-T T.81.
//
// Threads: plain values. Memory: a Scan borrows its tables and its data, which stay as they are while it is decoded.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::jpeg {

// B.2.4.2: BITS (the number of codes of each length, counts[0] is unused) and HUFFVAL (their symbols, in order of code).
struct HuffmanTable {
  std::array<std::uint8_t, 17> counts{};
  std::array<std::uint8_t, 256> symbols{};
};

// H_i and V_i of B.2.2; Td_j and Ta_j of B.2.3. A table may be missing (nullptr).
struct ScanComponent {
  int h = 1, v = 1;
  const HuffmanTable* dc = nullptr;
  const HuffmanTable* ac = nullptr;
};

// One scan that holds all components of the frame, in the frame's order (A.2.3), or the one component of a grey image.
struct Scan {
  int width = 0, height = 0;  // samples of the image
  int component_count = 0;    // 1 or 3
  std::array<ScanComponent, 3> components{};
  int restart_interval = 0;              // MCUs (B.2.4.4); 0: none
  std::span<const std::uint8_t> data{};  // from the first entropy-coded byte to the end of the file

  [[nodiscard]] int max_h() const noexcept {
    int most = 1;
    for (int i = 0; i < component_count; ++i) most = std::max(most, components[i].h);
    return most;
  }
  [[nodiscard]] int max_v() const noexcept {
    int most = 1;
    for (int i = 0; i < component_count; ++i) most = std::max(most, components[i].v);
    return most;
  }
  [[nodiscard]] int mcus_per_row() const noexcept { return (width + 8 * max_h() - 1) / (8 * max_h()); }
  [[nodiscard]] int mcu_rows() const noexcept { return (height + 8 * max_v() - 1) / (8 * max_v()); }
};

// One component of a row of MCUs. Block (x, y) of the row lies at first + y * row + x * 64: its quantised coefficients in
// natural order (row-major, 8x8). Memory: the caller's, zeroed by it, with whole MCUs in each row of blocks.
struct CoefficientRow {
  std::int16_t* first = nullptr;
  std::ptrdiff_t row = 0;
};

}  // namespace penstock::jpeg
