// A rectangle of pixels.
//
// Threads: plain values. Memory: none.
#pragma once

namespace penstock {

// Half-open: columns x0 <= x < x1, rows y0 <= y < y1.
struct Box {
  int x0 = 0, y0 = 0, x1 = 0, y1 = 0;

  [[nodiscard]] constexpr int width() const { return x1 - x0; }
  [[nodiscard]] constexpr int height() const { return y1 - y0; }
};

}  // namespace penstock
