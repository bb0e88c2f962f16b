// How many readers work: found by measuring what they bring.
//
// While workers wait for files, the number of readers doubles for as long as the rate of bytes rises with it; a step that
// brought nothing is taken back, and tried another time later. Where reads cease to block there are no readers at all:
// the workers read what lies in memory themselves, without another copy.
//
// Threads: a value that its owner guards. Memory: owns nothing.
#pragma once

#include <algorithm>
#include <cstdint>

namespace penstock {

// What the readers did, and the workers met, in some span of time.
struct ReadSpan {
  double seconds = 0;
  std::uint64_t bytes = 0;    // that readers brought
  std::uint64_t files = 0;    // that readers opened
  std::uint64_t metered = 0;  // of these files: it was looked at whether the reader slept for them
  std::uint64_t blocked = 0;  // of these: it did
  std::uint64_t served = 0;   // samples whose bytes had been brought when a worker came for them
  std::uint64_t starved = 0;  // samples that a worker waited for, or read itself
};

class ReadDepth {
 public:
  explicit ReadDepth(unsigned most) noexcept : most_(most) {}

  [[nodiscard]] unsigned now() const noexcept { return now_; }

  // Reads of workers have been seen to block.
  void start() noexcept {
    now_ = std::min(kFirst, most_);
    before_ = 0;
    hold_ = 0;
  }

  // Whether a span is long enough to be judged: some files of each reader.
  [[nodiscard]] bool judges(const ReadSpan& span) const noexcept {
    return span.seconds >= kSpanSeconds && span.files >= std::uint64_t{kFilesEach} * now_;
  }

  // Chooses the number of readers for the next span.
  void judge(const ReadSpan& span) noexcept {
    if (span.blocked * kBlockedShare < span.metered) {
      now_ = before_ = 0;
      return;
    }
    const double rate = static_cast<double>(span.bytes) / span.seconds;
    hold_ = std::max(0.0, hold_ - span.seconds);
    const bool wanting = span.starved * kStarvedShare > span.served + span.starved;
    if (before_ != 0 && wanting && rate < rate_before_ * kLeastGain) {
      now_ = before_;  // more readers brought no more
      before_ = 0;
      hold_ = kHoldSeconds;
      return;
    }
    before_ = 0;
    if (!wanting || now_ >= most_ || hold_ > 0) return;
    before_ = now_;
    rate_before_ = rate;
    now_ = std::min(now_ * 2, most_);
  }

  static constexpr unsigned kFirst = 16;

 private:
  static constexpr double kSpanSeconds = 0.03, kHoldSeconds = 0.25, kLeastGain = 1.05;
  static constexpr unsigned kFilesEach = 3;
  static constexpr std::uint64_t kBlockedShare = 10;  // fewer than a tenth blocked: the files lie in memory
  static constexpr std::uint64_t kStarvedShare = 20;  // more than a twentieth came too late: the readers are too few

  unsigned most_;
  unsigned now_ = 0;
  unsigned before_ = 0;  // the depth of the span before, where this one tries another; 0: it tries none
  double rate_before_ = 0;
  double hold_ = 0;  // seconds without another try
};

}  // namespace penstock
