// One axis of a picture after crops, flips and pads: which source position each position shows.
//
// Threads: an AxisMap belongs to one thread. Memory: owns its index, which is kept from reset to reset.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace penstock {

enum class PadMode : std::uint8_t { constant, edge, reflect, symmetric };

// The longest axis that a recipe may make, in pixels: sums of sizes and paddings cannot overflow an int.
inline constexpr int kMaxAxis = 1 << 28;

// Positions from <= i < to.
struct Span {
  int from = 0, to = 0;
  [[nodiscard]] constexpr bool empty() const { return from >= to; }
};

// A map is affine (`before` positions of one fill, `count` source positions start, start + step, ..., `after`
// positions of one fill) until edges are repeated or two fills meet on one side; then it is a plain index.
class AxisMap {
 public:
  // The whole of a source axis.
  void reset(int size) {
    affine_ = true;
    before_ = after_ = start_ = 0;
    step_ = 1;
    count_ = size;
  }

  [[nodiscard]] int size() const { return affine_ ? before_ + count_ + after_ : static_cast<int>(index_.size()); }
  [[nodiscard]] bool affine() const { return affine_; }
  // These describe an affine map.
  [[nodiscard]] int before() const { return before_; }
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] int after() const { return after_; }
  [[nodiscard]] int fill_before() const { return fill_before_; }
  [[nodiscard]] int fill_after() const { return fill_after_; }
  [[nodiscard]] bool reversed() const { return step_ < 0; }

  // The source position shown at position i, or -1 - k for fill k.
  [[nodiscard]] int at(int i) const {
    if (!affine_) return index_[static_cast<std::size_t>(i)];
    if (i < before_) return -1 - fill_before_;
    i -= before_;
    return i < count_ ? start_ + step_ * i : -1 - fill_after_;
  }

  // Keeps positions from .. from + size - 1; they lie within the axis.
  void crop(int from, int size) {
    if (!affine_) {
      std::copy_n(index_.begin() + from, size, index_.begin());
      index_.resize(static_cast<std::size_t>(size));
      return;
    }
    const int to = from + size;
    const int real_from = std::clamp(from - before_, 0, count_), real_to = std::clamp(to - before_, 0, count_);
    const int end = before_ + count_;
    before_ = std::max(0, std::min(to, before_) - from);
    after_ = std::max(0, to - std::max(from, end));
    start_ += step_ * real_from;
    count_ = real_to - real_from;
  }

  void flip() {
    if (!affine_) {
      std::reverse(index_.begin(), index_.end());
      return;
    }
    start_ += step_ * (count_ - 1);
    step_ = -step_;
    std::swap(before_, after_);
    std::swap(fill_before_, fill_after_);
  }

  // Adds positions on both sides. False, and nothing done: the axis would be too long, or a reflection would
  // reach further than the axis goes (numpy repeats it, torch refuses it).
  [[nodiscard]] bool pad(int before, int after, PadMode mode, int fill) {
    const int old = size();
    if (before < 0 || after < 0 || before > kMaxAxis || after > kMaxAxis || old + before + after > kMaxAxis) return false;
    const int reach = mode == PadMode::reflect ? old - 1 : mode == PadMode::symmetric ? old : kMaxAxis;
    if (std::max(before, after) > std::max(reach, 0) || (mode == PadMode::edge && old == 0)) return false;
    if (before == 0 && after == 0) return true;
    const bool same = (before == 0 || before_ == 0 || fill_before_ == fill) &&
                      (after == 0 || after_ == 0 || fill_after_ == fill);
    if (affine_ && mode == PadMode::constant && same) {
      if (before > 0) fill_before_ = fill;
      if (after > 0) fill_after_ = fill;
      before_ += before;
      after_ += after;
      return true;
    }
    extend(before, after, mode, fill);
    return true;
  }

  // The source positions that positions from .. to - 1 show; empty when they are all fill.
  [[nodiscard]] Span sources(int from, int to) const {
    if (affine_) {
      const int first = std::max(from - before_, 0), last = std::min(to - before_, count_) - 1;
      if (first > last) return {};
      const int a = start_ + step_ * first, b = start_ + step_ * last;
      return {std::min(a, b), std::max(a, b) + 1};
    }
    Span span{kMaxAxis, 0};
    for (int i = from; i < to; ++i) {
      const int source = index_[static_cast<std::size_t>(i)];
      if (source < 0) continue;
      span.from = std::min(span.from, source);
      span.to = std::max(span.to, source + 1);
    }
    return span;
  }

  // Positions from .. to - 1 show source positions in order, without fill: a picture may be read in place.
  [[nodiscard]] bool plain(int from, int to) const {
    return affine_ && step_ > 0 && from >= before_ && to <= before_ + count_;
  }

 private:
  void extend(int before, int after, PadMode mode, int fill) {
    const int old = size();
    other_.resize(static_cast<std::size_t>(before) + old + after);
    for (int i = -before; i < old + after; ++i) {
      int source = -1 - fill;
      if (i >= 0 && i < old) {
        source = at(i);
      } else if (mode == PadMode::edge) {
        source = at(i < 0 ? 0 : old - 1);
      } else if (mode != PadMode::constant) {
        const int repeat = mode == PadMode::symmetric ? 1 : 0;
        source = at(i < 0 ? -i - repeat : 2 * old - 2 + repeat - i);
      }
      other_[static_cast<std::size_t>(i + before)] = source;
    }
    index_.swap(other_);
    affine_ = false;
  }

  bool affine_ = true;
  int before_ = 0, start_ = 0, step_ = 1, count_ = 0, after_ = 0;
  int fill_before_ = 0, fill_after_ = 0;
  std::vector<std::int32_t> index_, other_;
};

}  // namespace penstock
