// Huffman decoding of a sequential scan (F.2.2 of ITU-T T.81): the quantised coefficients of its MCUs, or only a way past
// them.
//
// A call succeeds where libjpeg decodes the same data without a warning, and then gives the same coefficients. What is
// unusual or damaged is not decoded: codes and coefficients that do not exist, segments that end too early or too late,
// DC coefficients of more than 16 bits.
//
// Threads: an object belongs to one thread at a time; different objects are independent. Memory: tables and a buffer are
// the object's (65 KB, nothing is allocated); the scan's tables are copied by begin(), its data are borrowed until the last
// call, and never read outside of, whatever they hold.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "jpeg/entropy_coded_segment.h"
#include "jpeg/huffman_code.h"
#include "jpeg/row_state.h"
#include "jpeg/scan.h"

namespace penstock::jpeg {

// A block of an MCU: (x, y) is its place within the blocks of its component there.
struct McuBlock {
  int component = -1, x = 0, y = 0;
  const BlockTables* tables = nullptr;
};

// Where the coefficients of a block go to, MCU by MCU.
struct McuPlace {
  std::int16_t* next = nullptr;
  std::ptrdiff_t step = 0;
};

class EntropyDecoder {
 public:
  static constexpr int kMostBlocks = 6;  // of an MCU; T.81 allows 10

  EntropyDecoder() noexcept = default;
  EntropyDecoder(const EntropyDecoder&) = delete;
  EntropyDecoder& operator=(const EntropyDecoder&) = delete;

  // Goes before the first MCU. False: the scan is of no kind that is decoded here. After false, from this call or another,
  // the position is undefined: begin() or seek() comes next.
  [[nodiscard]] bool begin(const Scan& scan) noexcept;
  // Goes before the first MCU of a row. False: no decoder can be there in that state.
  [[nodiscard]] bool seek(const RowState& state, int mcu_row) noexcept;
  // The next MCUs of this row of MCUs, to the places of MCU first_mcu and those behind it.
  [[nodiscard]] bool decode(int mcus, const std::array<CoefficientRow, 3>& rows, int first_mcu) noexcept;
  // Passes over the next MCUs, of any number of rows.
  [[nodiscard]] bool skip(int mcus) noexcept;
  // Before the first MCU of a row; nothing elsewhere, and beyond 512 MB. It depends only on the bits up to its own.
  [[nodiscard]] std::optional<RowState> state() const noexcept;
  // After the last MCU: the end-of-image marker follows, with nothing between that libjpeg would warn of.
  [[nodiscard]] bool finish() noexcept;

 private:
  [[nodiscard]] bool plan_blocks() noexcept;
  [[nodiscard]] bool build_tables() noexcept;
  void go_to(int mcu) noexcept;
  [[nodiscard]] bool restart() noexcept;
  [[nodiscard]] bool pass(int mcus, McuPlace* places) noexcept;

  Scan scan_;
  int mcu_ = 0;  // the next one
  int mcu_count_ = 0;
  int interval_left_ = 0;  // MCUs before the next restart marker
  bool lost_ = true;       // the position is undefined
  std::array<int, 3> prediction_{};             // PRED of each component (F.2.2.1)
  std::array<McuBlock, kMostBlocks> blocks_{};  // of an MCU, in order (A.2.3)
  int block_count_ = 0;
  EntropyCodedSegment segment_;
  std::array<BlockTables, 3> tables_;
};

}  // namespace penstock::jpeg
