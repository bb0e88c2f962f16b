#include "image/resize_tables.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace penstock {
namespace {

// Entries of a weight table (16 MiB). A photo's has some thousands; Pillow itself refuses above 2^28.
constexpr std::int64_t kMaxEntries = std::int64_t{1} << 22;
constexpr int kPillowBits = 32 - 8 - 2;

// Pillow's filter functions, in double. `support` is half the width at scale 1.
struct Bilinear {
  static constexpr double support = 1.0;
  static double at(double x) {
    x = std::fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
  }
};

struct Bicubic {
  static constexpr double support = 2.0;
  static double at(double x) {
    constexpr double a = -0.5;
    x = std::fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
  }
};

struct Lanczos {
  static constexpr double support = 3.0;
  static double sinc(double x) {
    if (x == 0.0) return 1.0;
    x *= std::numbers::pi;
    return std::sin(x) / x;
  }
  static double at(double x) { return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0; }
};

// ATen's filter function where it is not Pillow's. Its AVX2 build contracts a * b + c to one rounding; std::fma says
// so on any machine.
template <bool kAntialias>
struct TorchBicubic {
  static constexpr double support = 2.0;
  static double at(double x) {
    constexpr double a = kAntialias ? -0.5 : -0.75;
    x = std::fabs(x);
    if (x < 1.0) return std::fma(std::fma(a + 2, x, -(a + 3)) * x, x, 1.0);
    if (x < 2.0) return std::fma(std::fma(std::fma(a, x, -5 * a), x, 8 * a), x, -4 * a);
    return 0.0;
  }
};

// Calls f with the filter's type.
template <class Function>
auto with_filter(const Axis& axis, Function f) {
  if (!is_pillow(axis.arithmetic) && axis.filter == Filter::bicubic)
    return axis.antialias ? f(TorchBicubic<true>{}) : f(TorchBicubic<false>{});
  switch (axis.filter) {
    case Filter::bicubic: return f(Bicubic{});
    case Filter::lanczos: return f(Lanczos{});
    default: return f(Bilinear{});
  }
}

// The antialiased sampling of one axis, the same in Pillow and in ATen.
struct Sampling {
  double scale, support, inverse;
  int in, taps;
  bool clip;  // ATen never uses more taps than it has room for

  Sampling(const Axis& axis, double filter_support)
      : scale(static_cast<double>(axis.in) / axis.out), in(axis.in), clip(!is_pillow(axis.arithmetic)) {
    const double stretch = std::max(scale, 1.0);
    support = filter_support * stretch;
    inverse = 1.0 / stretch;
    taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  }

  [[nodiscard]] double center(int output) const { return (output + 0.5) * scale; }

  [[nodiscard]] Span span(int output) const {
    const double middle = center(output);
    const int first = std::max(static_cast<int>(middle - support + 0.5), 0);
    int count = std::min(static_cast<int>(middle + support + 0.5), in) - first;
    if (clip) count = std::min(count, taps);
    return {first, std::max(count, 0)};
  }
};

// The weights of one output, normalised to sum 1.
template <class F>
Span normalised_weights(const Sampling& sampling, int output, double* weight) {
  const Span span = sampling.span(output);
  const double middle = sampling.center(output);
  double total = 0;
  for (int j = 0; j < span.count; ++j) {
    weight[j] = F::at((span.first + j - middle + 0.5) * sampling.inverse);
    total += weight[j];
  }
  if (total != 0)
    for (int j = 0; j < span.count; ++j) weight[j] /= total;
  std::fill(weight + span.count, weight + sampling.taps, 0.0);
  return span;
}

[[nodiscard]] std::int32_t to_fixed(double weight, int bits) {
  const double scaled = weight * static_cast<double>(1 << bits);
  return static_cast<std::int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
}

// ATen's fixed taps without antialiasing: 2 or 4, the weights of those outside the image added to the edge's.
struct PlainSample {
  int unbound;  // first tap, may be outside the image
  double lambda;
  Span span;

  PlainSample(const Axis& axis, int output) {
    const bool cubic = axis.filter == Filter::bicubic;
    const int taps = cubic ? 4 : 2;
    const double scale = static_cast<double>(axis.in) / axis.out;
    double position = std::fma(scale, output + 0.5, -0.5);
    if (!cubic && position < 0) position = 0;
    // ATen rounds to float before it takes the floor.
    const int index = std::min(static_cast<int>(std::floor(static_cast<float>(position))), axis.in - 1);
    lambda = std::min(std::max(position - index, 0.0), 1.0);
    unbound = index - taps / 2 + 1;
    span.first = std::max(unbound, 0);
    span.count = std::clamp(std::min(index + taps / 2 + 1, axis.in) - span.first, 0, taps);
  }
};

// `largest` grows to ATen's idea of the largest weight: that of the sums on the way.
template <class F>
Span plain_weights(const Axis& axis, int output, double* weight, double& largest) {
  const PlainSample sample(axis, output);
  const int taps = axis.filter == Filter::bicubic ? 4 : 2;
  int slot = 0;
  for (int j = 0; j < taps; ++j) {
    weight[j] = 0;
    if (sample.unbound + j <= 0) slot = 0;
    else if (sample.unbound + j >= axis.in - 1) slot = sample.span.count - 1;
    weight[slot] += F::at(j + 1 - taps / 2 - sample.lambda);
    largest = std::max(largest, weight[slot++]);
  }
  return sample.span;
}

[[nodiscard]] bool is_plain(const Axis& axis) { return !is_pillow(axis.arithmetic) && !axis.antialias; }

// ATen's precision: the largest shift with which the largest weight of the whole axis fits int16.
[[nodiscard]] int torch_precision(double largest) {
  int bits = 0;
  while (bits < 22 && static_cast<int>(0.5 + largest * (1 << (bits + 1))) < (1 << 15)) ++bits;
  return bits;
}

// Pillow's table goes straight to fixed point; a row of doubles stays in cache.
template <class F>
void build_pillow(const Axis& axis, const Sampling& sampling, AxisTable& table) {
  table.exact.resize(static_cast<std::size_t>(sampling.taps));
  table.precision = kPillowBits;
  std::int32_t* out = table.weight.data();
  double* weight = table.exact.data();
  for (int x = axis.begin; x < axis.end; ++x, out += sampling.taps) {
    table.span[static_cast<std::size_t>(x - axis.begin)] = normalised_weights<F>(sampling, x, weight);
    for (int j = 0; j < sampling.taps; ++j) out[j] = to_fixed(weight[j], kPillowBits);
  }
}

// ATen's precision depends on every output, wanted or not.
template <class F>
bool build_torch_u8(const Axis& axis, const Sampling& sampling, AxisTable& table) {
  const auto taps = static_cast<std::size_t>(table.taps);
  if (static_cast<std::int64_t>(taps) * axis.out > kMaxEntries) return false;
  table.exact.resize(taps * static_cast<std::size_t>(axis.out));
  double largest = 0;
  for (int x = 0; x < axis.out; ++x) {
    double* weight = table.exact.data() + taps * static_cast<std::size_t>(x);
    Span span;
    if (is_plain(axis)) {
      span = plain_weights<F>(axis, x, weight, largest);
    } else {
      span = normalised_weights<F>(sampling, x, weight);
      largest = std::max(largest, *std::max_element(weight, weight + taps));
    }
    if (x >= axis.begin && x < axis.end) table.span[static_cast<std::size_t>(x - axis.begin)] = span;
  }
  table.precision = torch_precision(largest);
  if (table.precision < 1) return false;
  const double* exact = table.exact.data() + taps * static_cast<std::size_t>(axis.begin);
  for (std::size_t i = 0; i < table.weight.size(); ++i)
    table.weight[i] = static_cast<std::int16_t>(to_fixed(exact[i], table.precision));
  return true;
}

// Span of source pixels of one output of a filter that is not nearest.
Span axis_span(const Axis& axis, int output) {
  if (is_plain(axis)) return PlainSample(axis, output).span;
  return with_filter(axis, [&](auto filter) { return Sampling(axis, decltype(filter)::support).span(output); });
}

}  // namespace

Span axis_reach(const Axis& axis) {
  const Span low = axis_span(axis, axis.begin), high = axis_span(axis, axis.end - 1);
  return {low.first, high.first + high.count - low.first};
}

bool build_axis_table(const Axis& axis, AxisTable& table) {
  return with_filter(axis, [&](auto filter) {
    using F = decltype(filter);
    const Sampling sampling(axis, F::support);
    table.taps = is_plain(axis) ? (axis.filter == Filter::bicubic ? 4 : 2) : sampling.taps;
    const std::int64_t outputs = axis.end - axis.begin;
    if (outputs < 1 || outputs * table.taps > kMaxEntries) return false;
    table.span.resize(static_cast<std::size_t>(outputs));
    table.weight.resize(static_cast<std::size_t>(outputs * table.taps));
    if (axis.arithmetic == Arithmetic::torch_u8) return build_torch_u8<F>(axis, sampling, table);
    build_pillow<F>(axis, sampling, table);
    return true;
  });
}

void build_nearest_index(const Axis& axis, std::vector<int>& index) {
  index.resize(static_cast<std::size_t>(axis.end - axis.begin));
  if (is_pillow(axis.arithmetic)) {
    // Geometry.c adds the step output by output; the sum's roundings are part of the result.
    const double step = static_cast<double>(axis.in) / axis.out;
    double position = step * 0.5;
    for (int x = 0; x < axis.end; ++x, position += step) {
      if (x < axis.begin) continue;
      index[static_cast<std::size_t>(x - axis.begin)] = std::min(static_cast<int>(position), axis.in - 1);
    }
    return;
  }
  const float scale = static_cast<float>(axis.in) / static_cast<float>(axis.out);
  for (int x = axis.begin; x < axis.end; ++x) {
    float position = static_cast<float>(x) * scale;
    if (axis.filter == Filter::nearest_exact) {
      if (axis.small) {
        position = static_cast<float>((x + 0.5) * static_cast<double>(scale));
      } else {
        const float source = std::max(std::fma(scale, static_cast<float>(x) + 0.5F, -0.5F), 0.0F);
        position = static_cast<float>(static_cast<double>(source) + 0.5);
      }
    }
    index[static_cast<std::size_t>(x - axis.begin)] = std::min(static_cast<int>(std::floor(position)), axis.in - 1);
  }
}

}  // namespace penstock
