#include "image/blur.h"

#include <algorithm>
#include <cstdlib>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock {

bool can_blur(const BlurWeights& weights, int height, int width) {
  return weights.height / 2 < height && weights.width / 2 < width;
}

#if defined(__x86_64__)

namespace {

constexpr int kVectors = 8, kBlock = 8 * kVectors;  // floats whose sums stay in registers

int reflected(int at, int size) {
  at = std::abs(at);
  return at < size ? at : 2 * size - 2 - at;
}

// One channel with its edges reflected, the columns then filled up with zeros to whole blocks.
struct Plane {
  int stride;
  std::vector<float> values;

  Plane(const BlurWeights& weights, const ImagePart& picture)
      : stride((picture.width + kBlock - 1) / kBlock * kBlock + weights.width),
        values(static_cast<std::size_t>(stride) * static_cast<std::size_t>(picture.height + weights.height - 1)) {}

  void fill(const BlurWeights& weights, const ImagePart& picture, int channel) {
    const int left = weights.width / 2, above = weights.height / 2;
    for (int y = 0; y < picture.height + 2 * above; ++y) {
      const std::uint8_t* const src = picture.data + picture.row_stride * reflected(y - above, picture.height) + channel;
      float* const to = values.data() + std::ptrdiff_t{stride} * y;
      for (int x = 0; x < picture.width + 2 * left; ++x)
        to[x] = src[std::ptrdiff_t{picture.channels} * reflected(x - left, picture.width)];
    }
  }
};

__attribute__((target("avx2,fma"))) void blur_block(const BlurWeights& weights, const float* src, int stride,
                                                    std::int32_t* to) {
  __m256 sums[kVectors];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  const float* weight = weights.values.data();
  for (int i = 0; i < weights.height; ++i, src += stride) {
    for (int j = 0; j < weights.width; ++j, ++weight) {
      const __m256 by = _mm256_set1_ps(*weight);
      for (int k = 0; k < kVectors; ++k) sums[k] = _mm256_fmadd_ps(_mm256_loadu_ps(src + j + 8 * k), by, sums[k]);
    }
  }
  for (int k = 0; k < kVectors; ++k)  // rounds half to even, as torch.round does
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8 * k), _mm256_cvtps_epi32(sums[k]));
}

}  // namespace

bool can_blur() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

void blur(const BlurWeights& weights, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  Plane plane(weights, picture);
  std::int32_t rounded[kBlock];
  for (int c = 0; c < picture.channels; ++c) {
    plane.fill(weights, picture, c);
    for (int y = 0; y < picture.height; ++y) {
      std::uint8_t* const row = dst + dst_stride * y + c;
      for (int x = 0; x < picture.width; x += kBlock) {
        blur_block(weights, plane.values.data() + std::ptrdiff_t{plane.stride} * y + x, plane.stride, rounded);
        const int count = std::min(kBlock, picture.width - x);
        for (int i = 0; i < count; ++i)
          row[std::ptrdiff_t{picture.channels} * (x + i)] = static_cast<std::uint8_t>(rounded[i]);
      }
    }
  }
}

#else

bool can_blur() { return false; }

void blur(const BlurWeights&, const ImagePart&, std::uint8_t*, std::ptrdiff_t) {}

#endif

}  // namespace penstock
