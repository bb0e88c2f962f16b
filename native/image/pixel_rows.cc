#include "image/pixel_rows.h"

#include <cstring>

#if defined(__x86_64__)
#include <tmmintrin.h>
#endif

namespace penstock {
namespace {

// Pixels from `x` on.
void copy_row(const std::uint8_t* rgb, int x, int width, PixelBytes what, std::uint8_t* out) noexcept {
  if (what == PixelBytes::first) {
    for (; x < width; ++x) out[x] = rgb[3 * x];
  } else {
    for (; x < width; ++x) {
      const std::uint8_t red = rgb[3 * x];
      out[3 * x] = rgb[3 * x + 2];
      out[3 * x + 1] = rgb[3 * x + 1];
      out[3 * x + 2] = red;
    }
  }
}

#if defined(__x86_64__)
// Five pixels at a time: 16 bytes are read and written, of which the next ones write those behind the five anew. Returns
// how many pixels of the row are done.
__attribute__((target("ssse3"))) int copy_fives(const std::uint8_t* rgb, int width, PixelBytes what, std::uint8_t* out) noexcept {
  const __m128i order = what == PixelBytes::first
                            ? _mm_setr_epi8(0, 3, 6, 9, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)
                            : _mm_setr_epi8(2, 1, 0, 5, 4, 3, 8, 7, 6, 11, 10, 9, 14, 13, 12, -1);
  const int bytes = what == PixelBytes::first ? 1 : 3;
  int x = 0;
  for (; (width - x) * bytes >= 16; x += 5)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + x * bytes),
                     _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rgb + 3 * x)), order));
  return x;
}
#endif

}  // namespace

void copy_rows(const std::uint8_t* rgb, std::ptrdiff_t stride, int height, int width, PixelBytes what,
               std::uint8_t* out) noexcept {
  const std::size_t row = static_cast<std::size_t>(width) * (what == PixelBytes::first ? 1 : 3);
#if defined(__x86_64__)
  const bool fives = __builtin_cpu_supports("ssse3") != 0;
#endif
  for (int y = 0; y < height; ++y, rgb += stride, out += row) {
    if (what == PixelBytes::rgb) {
      std::memcpy(out, rgb, row);
      continue;
    }
    int x = 0;
#if defined(__x86_64__)
    if (fives) x = copy_fives(rgb, width, what, out);
#endif
    copy_row(rgb, x, width, what, out);
  }
}

}  // namespace penstock
