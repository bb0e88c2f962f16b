// Resizing of 8-bit images with the pixels of Pillow or of torch, bit for bit.
//
// Sources of the arithmetic: Pillow's libImaging/Resample.c and Geometry.c; ATen's native/cpu/UpSampleKernel.cpp.
// What is not known to be reproducible is refused (`resize` returns false), so that Python decides.
//
// Threads: one Resizer per thread; `needed` and `supported` are pure and may be called by any thread.
// Memory: a Resizer owns its weight tables and scratch and reuses them; images belong to the caller. Only bytes
// between the first and the last byte of the given part are read, only the bytes of the window's rows are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "image/box.h"

namespace penstock {

// Pillow's filters but for those that nobody trains with (box, Hamming), and torch's "nearest-exact".
enum class Filter : std::uint8_t { nearest, bilinear, bicubic, lanczos, nearest_exact };

// pillow:    PIL.Image.resize of an RGB or L image by Pillow 13 (always antialiased; `antialias` is ignored). Pillow 13
//            reduces vertically first where that saves most; the 8-bit intermediate makes the order visible.
// pillow_12: the same by Pillow up to 12, horizontally first. Images taller than 100 widths are refused: 12.2 differs.
// torch_u8:  torch.nn.functional.interpolate of a uint8 tensor on an x86-64 CPU with AVX2.
// torch_f32: the same of the tensor cast to float32 and back. Only the nearest filters: the roundings of the float sums
//            depend on how the compiler vectorised torch's loop.
enum class Arithmetic : std::uint8_t { pillow, torch_u8, torch_f32, pillow_12 };

// A decoded part of an image: the rectangle (x0, y0, width, height) of a virtual image full_width x full_height.
// Samples are uint8, channels (1 or 3) interleaved; row_stride is in bytes and may be negative.
struct ImagePart {
  const std::uint8_t* data;
  std::ptrdiff_t row_stride;
  int x0, y0, width, height, full_width, full_height, channels;
};

class Resizer {
 public:
  // `simd` false forces the portable code; the result is the same.
  explicit Resizer(bool simd = true);
  ~Resizer();
  Resizer(const Resizer&) = delete;
  Resizer& operator=(const Resizer&) = delete;

  // Largest extent of an image or result, in pixels; larger ones are refused.
  static constexpr int kMaxExtent = 1 << 20;

  // Whether the combination is reproduced exactly, whatever the sizes.
  [[nodiscard]] static bool supported(Filter filter, Arithmetic arithmetic, bool antialias);

  // Which rectangle of the virtual source `window` of the (out_width x out_height) result depends on.
  // Empty (all zero) when the arguments are not supported.
  [[nodiscard]] static Box needed(int full_width, int full_height, int out_width, int out_height, Filter filter,
                                  Arithmetic arithmetic, bool antialias, Box window);

  // Computes `window` of the (out_width x out_height) result into dst (channels interleaved, rows dst_stride bytes
  // apart). False, with dst in an unspecified state, when the arguments are not supported, src does not hold what
  // is needed, or memory is short.
  [[nodiscard]] bool resize(const ImagePart& src, int out_width, int out_height, Filter filter, Arithmetic arithmetic,
                            bool antialias, Box window, std::uint8_t* dst, std::ptrdiff_t dst_stride) noexcept;

  // Bytes of the intermediate rows of the last resizes.
  [[nodiscard]] std::size_t held() const noexcept;
  // Gives them back.
  void release() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
