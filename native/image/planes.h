// Runs of interleaved 8-bit pixels, split into one plane a channel, as bytes or as float32.
//
// Threads: pure functions and plain values. Memory: buffers are the caller's; exactly channels x count bytes are
// read and count elements a plane are written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock {

inline constexpr int kMaxChannels = 3;

template <class T>
using Planes = std::array<T*, kMaxChannels>;

// Plane c gets byte c of each pixel; `reversed`: the last pixel first. channels is 1 or 3.
void split_planes(const std::uint8_t* src, int count, int channels, bool reversed, const Planes<std::uint8_t>& dst);

// A narrow plane of bytes through two affine maps with one fill: what small pictures cost most of all.
struct NarrowPlane {
  static constexpr int kLeast = 16, kMost = 128;  // width of the result

  int left, columns, right;  // of a row of the result: fill, source bytes, fill
  int above, rows, below;    // of the result: rows of fill, rows of the source, rows of fill
  bool reversed;             // the source bytes of a row, last one first
  std::uint8_t fill;
  const std::uint8_t* first;     // leftmost source byte of the first source row
  std::ptrdiff_t stride;         // from one source row to the next; negative when the rows are reversed
  const std::uint8_t *begin, *end;  // what may be read around the source rows
};

// Writes (above + rows + below) x (left + columns + right) bytes. False, and nothing written: not on this processor.
[[nodiscard]] bool copy_narrow(const NarrowPlane& plane, std::uint8_t* dst);

struct StandardTerms {
  std::array<float, kMaxChannels> mean{}, std{1, 1, 1}, inverse{1, 1, 1};  // inverse = 1 / std
};

// The arithmetic behind most tables: (x - mean) / std in float32, with x = v / 255, v * (1/255) or v.
// The divisions are done by reciprocals and two fused steps (P. Markstein, "Computation of elementary functions
// on the IBM RISC System/6000 processor", 1990); what is used has been compared with the table, value by value.
class Standard {
 public:
  // Whether this processor gives table (channels x 256 float32) by arithmetic, bit for bit.
  bool fit(const std::vector<float>& table, int channels);

  // As split_planes, with elements for bytes; only after fit() was true, and for count >= kLeast.
  void planes(const std::uint8_t* src, int count, int channels, bool reversed, const Planes<float>& dst) const;
  static constexpr int kLeast = 16;

  // The same for three channels, to interleaved elements; for count >= kLeastPixels.
  void pixels(const std::uint8_t* src, int count, bool reversed, float* dst) const;
  static constexpr int kLeastPixels = 8;

  // The arithmetic of one channel, as that of a picture of one channel.
  [[nodiscard]] Standard of_channel(int channel) const;

 private:
  bool fit_scale(const std::vector<float>& table, int channels, float scale, bool divides);
  bool fit_channel(const float* table, int channel);
  [[nodiscard]] bool same(const float* table, int channel) const;

  float scale_ = 1;          // of v
  bool divides_ = false;     // by 1 / scale_ exactly, rather than a rounded product
  bool normalises_ = false;  // mean and std follow
  StandardTerms terms_;
};

}  // namespace penstock
