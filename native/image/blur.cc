#include "image/blur.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock {
namespace {

constexpr std::size_t kMostKept = 8192;  // sigmas of samples that are to come

// By height, width, generation and the bits of sigma.
using SigmaKey = std::tuple<int, int, bool, std::uint64_t>;

struct KeptWeights {
  std::mutex lock;
  std::map<SigmaKey, std::shared_ptr<const BlurWeights>> by_sigma;
  std::deque<SigmaKey> order;  // the oldest first
};

// A thread of the process may hold the lock while another one forks: the child takes it over open.
KeptWeights& all_kept() {
  static auto* const kept = [] {
    pthread_atfork([] { all_kept().lock.lock(); }, [] { all_kept().lock.unlock(); }, [] { all_kept().lock.unlock(); });
    return new KeptWeights;  // never freed: threads may draw until the process ends
  }();
  return *kept;
}

SigmaKey key_of(int height, int width, bool second, double sigma) {
  return {height, width, second, std::bit_cast<std::uint64_t>(sigma)};
}

}  // namespace

void keep_weights(std::shared_ptr<const BlurWeights> weights, double sigma) {
  const SigmaKey key = key_of(weights->height, weights->width, weights->second, sigma);
  KeptWeights& kept = all_kept();
  const std::lock_guard hold(kept.lock);
  if (!kept.by_sigma.emplace(key, std::move(weights)).second) return;
  kept.order.push_back(key);
  if (kept.order.size() <= kMostKept) return;
  kept.by_sigma.erase(kept.order.front());
  kept.order.pop_front();
}

std::shared_ptr<const BlurWeights> kept_weights(int height, int width, bool second, double sigma) {
  KeptWeights& kept = all_kept();
  const std::lock_guard hold(kept.lock);
  const auto found = kept.by_sigma.find(key_of(height, width, second, sigma));
  return found == kept.by_sigma.end() ? nullptr : found->second;
}

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
    const int left = weights.width / 2, above = weights.height / 2, width = picture.width, step = picture.channels;
    for (int y = 0; y < picture.height + 2 * above; ++y) {
      const std::uint8_t* const src = picture.data + picture.row_stride * reflected(y - above, picture.height) + channel;
      float* const to = values.data() + std::ptrdiff_t{stride} * y + left;
      for (int x = 0; x < width; ++x) to[x] = src[std::ptrdiff_t{step} * x];
      for (int x = 1; x <= left; ++x) {
        to[-x] = to[reflected(x, width)];
        to[width - 1 + x] = to[reflected(width - 1 + x, width)];
      }
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

// ---- several rows at once, where the processor has wide registers ----

constexpr int kRows = 4, kWide = 4, kLeastWide = 7;  // rows of the result, registers a row, and rows of weights at least
static_assert(16 * kWide == kBlock);

// Weights with kRows - 1 rows of zeros above and below: a product with zero changes no sum.
std::vector<float> with_zeros(const BlurWeights& weights) {
  const auto margin = static_cast<std::size_t>((kRows - 1) * weights.width);
  std::vector<float> all(weights.values.size() + 2 * margin);
  std::copy(weights.values.begin(), weights.values.end(), all.begin() + static_cast<std::ptrdiff_t>(margin));
  return all;
}

// Each sum adds its products in the order in which blur_block adds them.
__attribute__((target("avx512f"))) void blur_rows(const float* weights, int height, int width, const float* src,
                                                  int stride, std::int32_t* to) {
  __m512 sums[kRows][kWide];
  for (auto& row : sums)
    for (__m512& sum : row) sum = _mm512_setzero_ps();
  for (int i = 0; i < height + kRows - 1; ++i, src += stride) {
    const float* const by_row = weights + std::ptrdiff_t{i + kRows - 1} * width;
    for (int j = 0; j < width; ++j) {
      __m512 pixels[kWide];
      for (int k = 0; k < kWide; ++k) pixels[k] = _mm512_loadu_ps(src + j + 16 * k);
      for (int row = 0; row < kRows; ++row) {
        const __m512 by = _mm512_set1_ps(by_row[j - std::ptrdiff_t{row} * width]);
        for (int k = 0; k < kWide; ++k) sums[row][k] = _mm512_fmadd_ps(pixels[k], by, sums[row][k]);
      }
    }
  }
  for (const auto& row : sums)
    for (const __m512& sum : row) {
      _mm512_storeu_si512(to, _mm512_cvtps_epi32(sum));
      to += 16;
    }
}

void write_row(const std::int32_t* rounded, int count, int step, std::uint8_t* to) {
  for (int i = 0; i < count; ++i) to[std::ptrdiff_t{step} * i] = static_cast<std::uint8_t>(rounded[i]);
}

}  // namespace

bool can_blur() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

void blur(const BlurWeights& weights, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  Plane plane(weights, picture);
  std::int32_t rounded[kRows * kBlock];
  const bool wide = __builtin_cpu_supports("avx512f") && weights.height >= kLeastWide;
  const std::vector<float> padded = wide ? with_zeros(weights) : std::vector<float>();
  for (int c = 0; c < picture.channels; ++c) {
    plane.fill(weights, picture, c);
    for (int y = 0; y < picture.height;) {
      const int rows = wide && y + kRows <= picture.height ? kRows : 1;
      for (int x = 0; x < picture.width; x += kBlock) {
        const float* const src = plane.values.data() + std::ptrdiff_t{plane.stride} * y + x;
        if (rows == kRows) {
          blur_rows(padded.data(), weights.height, weights.width, src, plane.stride, rounded);
        } else {
          blur_block(weights, src, plane.stride, rounded);
        }
        const int count = std::min(kBlock, picture.width - x);
        for (int row = 0; row < rows; ++row)
          write_row(rounded + row * kBlock, count, picture.channels,
                    dst + dst_stride * (y + row) + std::ptrdiff_t{picture.channels} * x + c);
      }
      y += rows;
    }
  }
}

#else

bool can_blur() { return false; }

void blur(const BlurWeights&, const ImagePart&, std::uint8_t*, std::ptrdiff_t) {}

#endif

}  // namespace penstock
