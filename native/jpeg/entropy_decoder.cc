#include "jpeg/entropy_decoder.h"

#include <algorithm>
#include <limits>

#include "jpeg/mcu_loop.h"

namespace penstock::jpeg {
namespace {

struct Run {
  EntropyCodedSegment& segment;
  std::span<const McuBlock> blocks;
  std::array<int, 3>& predictions;
  McuPlace* places;  // nullptr: the MCUs are passed over
};

[[gnu::always_inline]] inline bool run(int mcus, const Run& r) {
  return r.places != nullptr ? decode_mcus<true>(mcus, r.segment, r.blocks, r.predictions, r.places)
                             : decode_mcus<false>(mcus, r.segment, r.blocks, r.predictions, nullptr);
}

bool run_portable(int mcus, const Run& r) { return run(mcus, r); }

#if defined(__x86_64__)
// Shifts by a register that are one instruction.
__attribute__((target("bmi,bmi2"))) bool run_bmi2(int mcus, const Run& r) { return run(mcus, r); }

bool run_mcus(int mcus, const Run& r) {
  static const bool bmi2 = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  return bmi2 ? run_bmi2(mcus, r) : run_portable(mcus, r);
}
#else
bool run_mcus(int mcus, const Run& r) { return run_portable(mcus, r); }
#endif

}  // namespace

bool EntropyDecoder::plan_blocks() noexcept {
  block_count_ = 0;
  if (scan_.width <= 0 || scan_.height <= 0 || scan_.width > 0xFFFF || scan_.height > 0xFFFF) return false;
  if (scan_.component_count != 1 && scan_.component_count != 3) return false;
  if (scan_.restart_interval < 0 || scan_.restart_interval > 0xFFFF) return false;
  for (int c = 0; c < scan_.component_count; ++c) {
    const ScanComponent& component = scan_.components[c];
    // A.2.2: the MCU of a scan of one component is one block, whatever its sampling.
    const int most = scan_.component_count == 1 ? 1 : 2;
    if (component.h < 1 || component.v < 1 || component.h > most || component.v > most) return false;
    if (block_count_ + component.h * component.v > kMostBlocks) return false;
    for (int y = 0; y < component.v; ++y)
      for (int x = 0; x < component.h; ++x) blocks_[block_count_++] = {c, x, y, &tables_[c]};
  }
  return true;
}

bool EntropyDecoder::build_tables() noexcept {
  for (int c = 0; c < scan_.component_count; ++c) {
    const ScanComponent& component = scan_.components[c];
    if (component.dc == nullptr || component.ac == nullptr) return false;
    int same = 0;
    while (scan_.components[same].dc != component.dc || scan_.components[same].ac != component.ac) ++same;
    if (same == c && !tables_[c].build(*component.dc, *component.ac)) return false;
    for (McuBlock& block : blocks_)
      if (block.component == c) block.tables = &tables_[same];
  }
  return true;
}

void EntropyDecoder::go_to(int mcu) noexcept {
  mcu_ = mcu;
  const int interval = scan_.restart_interval;
  if (interval == 0)
    interval_left_ = std::numeric_limits<int>::max();
  else
    interval_left_ = mcu == 0 ? interval : (interval - mcu % interval) % interval;
  lost_ = false;
}

bool EntropyDecoder::begin(const Scan& scan) noexcept {
  scan_ = scan;
  mcu_ = mcu_count_ = 0;
  lost_ = true;
  if (!plan_blocks() || !build_tables()) return false;
  mcu_count_ = scan_.mcus_per_row() * scan_.mcu_rows();
  prediction_ = {};
  segment_.start(scan_.data, 0, 0);
  go_to(0);
  return true;
}

bool EntropyDecoder::seek(const RowState& state, int mcu_row) noexcept {
  lost_ = true;
  if (mcu_count_ == 0 || mcu_row < 0 || mcu_row >= scan_.mcu_rows() || state.bit == RowState::kUnknown) return false;
  const std::size_t byte = state.bit / 8;
  if (byte > scan_.data.size()) return false;
  // No bit follows a byte of ones but behind its stuffed byte.
  if (byte > 0 && scan_.data[byte - 1] == 0xFF) return false;
  std::copy(state.dc.begin(), state.dc.end(), prediction_.begin());
  segment_.start(scan_.data, byte, state.bit % 8);
  go_to(mcu_row * scan_.mcus_per_row());
  return true;
}

// F.2.1.3.1 and B.2.1: the marker that ends a restart interval, RST0 to RST7 in turn.
bool EntropyDecoder::restart() noexcept {
  const auto marker = segment_.marker(segment_.reader);
  const int number = (mcu_ / scan_.restart_interval - 1) % 8;
  if (!marker || marker->code != 0xD0 + number) return false;
  segment_.start(scan_.data, marker->end, 0);
  prediction_ = {};
  interval_left_ = scan_.restart_interval;
  return true;
}

bool EntropyDecoder::pass(int mcus, McuPlace* places) noexcept {
  if (lost_ || mcus < 0 || mcus > mcu_count_ - mcu_) return false;
  lost_ = true;
  const Run r{segment_, {blocks_.data(), static_cast<std::size_t>(block_count_)}, prediction_, places};
  while (mcus > 0) {
    if (interval_left_ == 0 && !restart()) return false;
    const int now = std::min(mcus, interval_left_);
    if (!run_mcus(now, r)) return false;
    mcus -= now;
    mcu_ += now;
    interval_left_ -= now;
  }
  lost_ = false;
  return true;
}

bool EntropyDecoder::decode(int mcus, const std::array<CoefficientRow, 3>& rows, int first_mcu) noexcept {
  if (lost_ || mcus < 0 || mcus > scan_.mcus_per_row() - mcu_ % scan_.mcus_per_row()) return false;
  std::array<McuPlace, kMostBlocks> places;
  for (int i = 0; i < block_count_; ++i) {
    const McuBlock& block = blocks_[i];
    const CoefficientRow& row = rows[block.component];
    const int h = scan_.components[block.component].h;
    places[i] = {row.first + block.y * row.row + (std::ptrdiff_t{first_mcu} * h + block.x) * 64, std::ptrdiff_t{h} * 64};
  }
  return pass(mcus, places.data());
}

bool EntropyDecoder::skip(int mcus) noexcept { return pass(mcus, nullptr); }

std::optional<RowState> EntropyDecoder::state() const noexcept {
  if (lost_ || mcu_ == mcu_count_ || mcu_ % scan_.mcus_per_row() != 0) return std::nullopt;
  const std::uint64_t bit = segment_.position_in_data(segment_.reader);
  if (bit >= RowState::kUnknown) return std::nullopt;
  RowState state{.bit = static_cast<std::uint32_t>(bit)};
  for (std::size_t i = 0; i < state.dc.size(); ++i) state.dc[i] = static_cast<std::int16_t>(prediction_[i]);
  return state;
}

bool EntropyDecoder::finish() noexcept {
  if (lost_ || mcu_ != mcu_count_) return false;
  const auto marker = segment_.marker(segment_.reader);
  return marker && marker->code == 0xD9;
}

}  // namespace penstock::jpeg
