#include "image/colours.h"

#include <array>
#include <cstring>

// Each row's work is written once, for the compiler to vectorise: for any processor, and for those with AVX2. FMA is left
// out: Pillow rounds each product.
#if defined(__x86_64__)
#define PENSTOCK_HAS_AVX2 __builtin_cpu_supports("avx2")
#define PENSTOCK_AVX2 __attribute__((target("avx2")))
#else
#define PENSTOCK_HAS_AVX2 false
#define PENSTOCK_AVX2
#endif
#define PENSTOCK_INLINE __attribute__((always_inline)) inline

namespace penstock {
namespace {

const std::uint8_t* line(const ImagePart& picture, int y) { return picture.data + picture.row_stride * y; }

// Calls row(source, destination) for each row.
template <class F>
void by_row(const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride, F row) {
  for (int y = 0; y < picture.height; ++y, dst += dst_stride) row(line(picture, y), dst);
}

// ---- saturation ----

PENSTOCK_INLINE void saturate(const std::uint8_t* src, int width, float factor, std::uint8_t* dst) {
  for (int x = 0; x < width; ++x, src += 3, dst += 3) {
    const int grey = grey_of(src);
    const std::uint8_t r = blended(grey, src[0], factor), g = blended(grey, src[1], factor),
                       b = blended(grey, src[2], factor);
    dst[0] = r;
    dst[1] = g;
    dst[2] = b;
  }
}

void saturate_plain(const std::uint8_t* src, int width, float factor, std::uint8_t* dst) { saturate(src, width, factor, dst); }
PENSTOCK_AVX2 void saturate_avx2(const std::uint8_t* src, int width, float factor, std::uint8_t* dst) {
  saturate(src, width, factor, dst);
}

// ---- hue ----

constexpr int kChunk = 64;  // pixels at once, channels apart

struct Chunk {
  std::array<int, kChunk> r, g, b, h, s, side, p, q, t;
};

// rgb2hsv_row of Convert.c; v is the largest channel and stays in r.
PENSTOCK_INLINE void to_hsv(Chunk& chunk, int shift) {
  for (std::size_t i = 0; i < kChunk; ++i) {
    const int r = chunk.r[i], g = chunk.g[i], b = chunk.b[i];
    const int most = std::max(std::max(r, g), b), least = std::min(std::min(r, g), b);
    const bool grey = most == least;
    const auto range = static_cast<float>(grey ? 1 : most - least);
    const float s = range / static_cast<float>(std::max(most, 1));
    const float rc = static_cast<float>(most - r) / range;
    const float gc = static_cast<float>(most - g) / range;
    const float bc = static_cast<float>(most - b) / range;
    const float of_r = bc - gc;
    const auto of_g = static_cast<float>(2.0 + static_cast<double>(rc) - static_cast<double>(bc));
    const auto of_b = static_cast<float>(4.0 + static_cast<double>(gc) - static_cast<double>(rc));
    const float h_of_g_or_b = g == most ? of_g : of_b;
    const float h = r == most ? of_r : h_of_g_or_b;
    // fmod(h / 6 + 1, 1): h / 6 + 1 lies in [5/6, 11/6], where the subtraction is exact.
    const double turned = static_cast<double>(h) / 6.0 + 1.0;
    const auto turn = static_cast<float>(turned - (turned >= 1.0 ? 1.0 : 0.0));
    const int uh = std::min(static_cast<int>(static_cast<double>(turn) * 255.0), 255);
    const int us = static_cast<int>(static_cast<double>(s) * 255.0);
    chunk.h[i] = ((grey ? 0 : uh) + shift) & 255;
    chunk.s[i] = grey ? 0 : us;
    chunk.r[i] = most;
  }
}

// round() of a number in [0, 255].
PENSTOCK_INLINE int rounded(double exact) {
  const int below = static_cast<int>(exact);
  return below + (exact - static_cast<double>(below) >= 0.5 ? 1 : 0);
}

// hsv2rgb of Convert.c
PENSTOCK_INLINE void to_rgb(Chunk& chunk) {
  for (std::size_t i = 0; i < kChunk; ++i) {
    const double sixth = static_cast<double>(chunk.h[i]) * 6.0 / 255.0;
    const int whole = static_cast<int>(sixth);
    const auto f = static_cast<float>(sixth - static_cast<double>(whole));
    const auto fs = static_cast<float>(static_cast<double>(chunk.s[i]) / 255.0);
    const auto value = static_cast<double>(chunk.r[i]);
    chunk.p[i] = rounded(value * (1.0 - static_cast<double>(fs)));
    chunk.q[i] = rounded(value * (1.0 - static_cast<double>(fs * f)));
    chunk.t[i] = rounded(value * (1.0 - static_cast<double>(fs) * (1.0 - static_cast<double>(f))));
    chunk.side[i] = whole == 6 ? 0 : whole;
  }
  for (std::size_t i = 0; i < kChunk; ++i) {
    const int v = chunk.r[i], p = chunk.p[i], q = chunk.q[i], t = chunk.t[i], side = chunk.side[i];
    const auto chosen = [=](int at_v, int next_v, int at_t, int at_q) {
      const int q_or_p = side == at_q ? q : p;
      const int t_or_less = side == at_t ? t : q_or_p;
      return (side == at_v) | (side == next_v) ? v : t_or_less;
    };
    chunk.r[i] = chosen(0, 5, 4, 1);
    chunk.g[i] = chosen(1, 2, 0, 3);
    chunk.b[i] = chosen(3, 4, 2, 5);
  }
}

PENSTOCK_INLINE void turn(const std::uint8_t* src, int width, int shift, std::uint8_t* dst) {
  Chunk chunk{};
  for (int x = 0; x < width; x += kChunk) {
    const int count = std::min(kChunk, width - x);
    for (int i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      chunk.r[at] = src[3 * (x + i)];
      chunk.g[at] = src[3 * (x + i) + 1];
      chunk.b[at] = src[3 * (x + i) + 2];
    }
    to_hsv(chunk, shift);
    to_rgb(chunk);
    for (int i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      dst[3 * (x + i)] = static_cast<std::uint8_t>(chunk.r[at]);
      dst[3 * (x + i) + 1] = static_cast<std::uint8_t>(chunk.g[at]);
      dst[3 * (x + i) + 2] = static_cast<std::uint8_t>(chunk.b[at]);
    }
  }
}

void turn_plain(const std::uint8_t* src, int width, int shift, std::uint8_t* dst) { turn(src, width, shift, dst); }
PENSTOCK_AVX2 void turn_avx2(const std::uint8_t* src, int width, int shift, std::uint8_t* dst) { turn(src, width, shift, dst); }

// ---- sharpness ----

using Row = const std::uint8_t* __restrict;

// ImagingFilter3x3 with ImageFilter.SMOOTH, then ImagingBlend with the picture. `step`: bytes of a pixel.
PENSTOCK_INLINE void sharpen(Row below, Row at, Row above, int bytes, int step, float factor,
                             std::uint8_t* __restrict dst) {
  constexpr float kSide = 1.0f / 13.0f, kMiddle = 5.0f / 13.0f;
  for (int i = step; i < bytes - step; ++i) {
    float sum = 0.5f;
    sum += static_cast<float>(below[i - step]) * kSide + static_cast<float>(below[i]) * kSide +
           static_cast<float>(below[i + step]) * kSide;
    sum += static_cast<float>(at[i - step]) * kSide + static_cast<float>(at[i]) * kMiddle +
           static_cast<float>(at[i + step]) * kSide;
    sum += static_cast<float>(above[i - step]) * kSide + static_cast<float>(above[i]) * kSide +
           static_cast<float>(above[i + step]) * kSide;
    dst[i] = blended(static_cast<int>(sum), at[i], factor);  // the sum lies in [0.5, 255.5 + rounding]
  }
}

void sharpen_plain(Row below, Row at, Row above, int bytes, int step, float factor, std::uint8_t* dst) {
  sharpen(below, at, above, bytes, step, factor, dst);
}
PENSTOCK_AVX2 void sharpen_avx2(Row below, Row at, Row above, int bytes, int step, float factor, std::uint8_t* dst) {
  sharpen(below, at, above, bytes, step, factor, dst);
}

}  // namespace

void change_saturation(float factor, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const auto change = PENSTOCK_HAS_AVX2 ? saturate_avx2 : saturate_plain;
  by_row(picture, dst, dst_stride,
         [&](const std::uint8_t* src, std::uint8_t* to) { change(src, picture.width, factor, to); });
}

void change_hue(std::uint8_t shift, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const auto change = PENSTOCK_HAS_AVX2 ? turn_avx2 : turn_plain;
  by_row(picture, dst, dst_stride,
         [&](const std::uint8_t* src, std::uint8_t* to) { change(src, picture.width, shift, to); });
}

void change_sharpness(float factor, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const auto change = PENSTOCK_HAS_AVX2 ? sharpen_avx2 : sharpen_plain;
  const int step = picture.channels, bytes = picture.width * step;
  const bool filters = picture.width >= 3 && picture.height >= 3;
  for (int y = 0; y < picture.height; ++y, dst += dst_stride) {
    const std::uint8_t* const at = line(picture, y);
    std::memcpy(dst, at, static_cast<std::size_t>(bytes));
    if (filters && y > 0 && y + 1 < picture.height)
      change(line(picture, y + 1), at, line(picture, y - 1), bytes, step, factor, dst);
  }
}

}  // namespace penstock
