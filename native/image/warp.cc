// Image.transform(AFFINE) and Image.rotate of Pillow (Geometry.c), and the matrices that torchvision gives them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numbers>
#include <vector>

#include "image/effects.h"

namespace penstock {
namespace {

constexpr double kRadians = std::numbers::pi / 180.0;  // math.radians

int floored(double v) { return static_cast<int>(v >= 0.0 ? v : std::floor(v)); }

// A place before the picture, also where an int would not hold it.
int nearest_place(double v) { return v < 0.0 || v >= 1e9 ? -1 : static_cast<int>(v); }

template <int C>
void copy_pixel(const std::uint8_t* from, std::uint8_t* to) {
  for (int c = 0; c < C; ++c) to[c] = from[c];
}

// The pixels of one picture, C channels each.
template <int C>
struct Pixels {
  const ImagePart& picture;
  [[nodiscard]] const std::uint8_t* at(int x, int y) const {
    return picture.data + picture.row_stride * y + std::ptrdiff_t{C} * x;
  }
  [[nodiscard]] bool inside(int x, int y) const {
    return static_cast<unsigned>(x) < static_cast<unsigned>(picture.width) &&
           static_cast<unsigned>(y) < static_cast<unsigned>(picture.height);
  }
};

// ---- nearest ----

// ImagingScaleAffine: rows and columns are chosen apart.
template <int C>
void scale_nearest(const std::array<double, 6>& m, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t stride) {
  const Pixels<C> pixels{picture};
  std::vector<int> columns(static_cast<std::size_t>(picture.width));
  double at = m[2] + m[0] * 0.5;
  for (int& column : columns) {
    column = nearest_place(at);
    if (column >= picture.width) column = -1;
    at += m[0];
  }
  double down = m[5] + m[4] * 0.5;
  for (int y = 0; y < picture.height; ++y, dst += stride, down += m[4]) {
    const int row = nearest_place(down);
    if (row < 0 || row >= picture.height) continue;
    std::uint8_t* to = dst;
    for (const int column : columns) {
      if (column >= 0) copy_pixel<C>(pixels.at(column, row), to);
      to += C;
    }
  }
}

bool fits_fixed(const std::array<double, 6>& m, double x, double y) {
  return std::fabs(x * m[0] + y * m[1] + m[2]) < 32768.0 && std::fabs(x * m[3] + y * m[4] + m[5]) < 32768.0;
}

// affine_fixed: 16.16 fixed point.
template <int C>
void fixed_nearest(const std::array<double, 6>& m, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t stride) {
  const Pixels<C> pixels{picture};
  const auto fixed = [](double v) { return static_cast<std::uint32_t>(floored(v * 65536.0 + 0.5)); };
  const std::uint32_t across_x = fixed(m[0]), down_x = fixed(m[1]), across_y = fixed(m[3]), down_y = fixed(m[4]);
  std::uint32_t first_x = fixed(m[2] + m[0] * 0.5 + m[1] * 0.5), first_y = fixed(m[5] + m[3] * 0.5 + m[4] * 0.5);
  for (int y = 0; y < picture.height; ++y, dst += stride, first_x += down_x, first_y += down_y) {
    std::uint32_t at_x = first_x, at_y = first_y;
    std::uint8_t* to = dst;
    for (int x = 0; x < picture.width; ++x, to += C, at_x += across_x, at_y += across_y) {
      const int column = static_cast<std::int32_t>(at_x) >> 16, row = static_cast<std::int32_t>(at_y) >> 16;
      if (pixels.inside(column, row)) copy_pixel<C>(pixels.at(column, row), to);
    }
  }
}

template <int C>
void exact_nearest(const std::array<double, 6>& m, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t stride) {
  const Pixels<C> pixels{picture};
  double first_x = m[2] + m[0] * 0.5 + m[1] * 0.5, first_y = m[5] + m[3] * 0.5 + m[4] * 0.5;
  for (int y = 0; y < picture.height; ++y, dst += stride, first_x += m[1], first_y += m[4]) {
    double at_x = first_x, at_y = first_y;
    std::uint8_t* to = dst;
    for (int x = 0; x < picture.width; ++x, to += C, at_x += m[0], at_y += m[3]) {
      const int column = nearest_place(at_x), row = nearest_place(at_y);
      if (pixels.inside(column, row)) copy_pixel<C>(pixels.at(column, row), to);
    }
  }
}

template <int C>
void warp_nearest(const std::array<double, 6>& m, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t stride) {
  if (m[1] == 0 && m[3] == 0) return scale_nearest<C>(m, picture, dst, stride);
  const double right = picture.width, bottom = picture.height;
  const bool fits = fits_fixed(m, 0, 0) && fits_fixed(m, right, bottom) && fits_fixed(m, 0, bottom) && fits_fixed(m, right, 0);
  return fits ? fixed_nearest<C>(m, picture, dst, stride) : exact_nearest<C>(m, picture, dst, stride);
}

// ---- with interpolation: bilinear_filter and bicubic_filter ----

double between(double a, double b, double share) { return a + (b - a) * share; }

double along_cubic(double v1, double v2, double v3, double v4, double d) {
  const double p1 = v2, p2 = -v1 + v3, p3 = 2 * (v1 - v2) + v3 - v4, p4 = -v1 + v2 - v3 + v4;
  return p1 + d * (p2 + d * (p3 + d * p4));
}

template <int C>
void bilinear_pixel(const ImagePart& picture, double at_x, double at_y, std::uint8_t* to) {
  const Pixels<C> pixels{picture};
  const int x = floored(at_x), y = floored(at_y);
  const double dx = at_x - x, dy = at_y - y;
  const int x0 = std::clamp(x, 0, picture.width - 1), x1 = std::clamp(x + 1, 0, picture.width - 1);
  const int y0 = std::clamp(y, 0, picture.height - 1), y1 = y + 1 < picture.height ? y + 1 : y0;
  for (int c = 0; c < C; ++c) {
    const double above = between(pixels.at(x0, y0)[c], pixels.at(x1, y0)[c], dx);
    const double below = between(pixels.at(x0, y1)[c], pixels.at(x1, y1)[c], dx);
    to[c] = static_cast<std::uint8_t>(between(above, below, dy));
  }
}

template <int C>
void bicubic_pixel(const ImagePart& picture, double at_x, double at_y, std::uint8_t* to) {
  const Pixels<C> pixels{picture};
  const int x = floored(at_x), y = floored(at_y);
  const double dx = at_x - x, dy = at_y - y;
  std::array<int, 4> columns{}, rows{};
  for (int i = 0; i < 4; ++i) {
    columns[static_cast<std::size_t>(i)] = std::clamp(x - 1 + i, 0, picture.width - 1);
    rows[static_cast<std::size_t>(i)] = std::clamp(y - 1 + i, 0, picture.height - 1);
  }
  for (int c = 0; c < C; ++c) {
    std::array<double, 4> v{};
    for (std::size_t i = 0; i < 4; ++i)
      v[i] = along_cubic(pixels.at(columns[0], rows[i])[c], pixels.at(columns[1], rows[i])[c],
                         pixels.at(columns[2], rows[i])[c], pixels.at(columns[3], rows[i])[c], dx);
    const double value = along_cubic(v[0], v[1], v[2], v[3], dy);
    to[c] = value <= 0.0 ? 0 : value >= 255.0 ? 255 : static_cast<std::uint8_t>(value);
  }
}

template <int C, void (*Pixel)(const ImagePart&, double, double, std::uint8_t*)>
void interpolate(const std::array<double, 6>& m, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t stride) {
  for (int y = 0; y < picture.height; ++y, dst += stride) {
    std::uint8_t* to = dst;
    const double down = y + 0.5;
    for (int x = 0; x < picture.width; ++x, to += C) {
      const double across = x + 0.5;
      const double at_x = m[0] * across + m[1] * down + m[2], at_y = m[3] * across + m[4] * down + m[5];
      if (at_x >= 0.0 && at_x < picture.width && at_y >= 0.0 && at_y < picture.height)
        Pixel(picture, at_x - 0.5, at_y - 0.5, to);
    }
  }
}

template <int C>
void warp(const Warp& by, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t stride) {
  for (int y = 0; y < picture.height; ++y)
    for (int x = 0; x < picture.width; ++x) copy_pixel<C>(by.fill.data(), dst + stride * y + std::ptrdiff_t{C} * x);
  if (by.filter == Filter::nearest) return warp_nearest<C>(by.matrix, picture, dst, stride);
  if (by.filter == Filter::bilinear) return interpolate<C, bilinear_pixel<C>>(by.matrix, picture, dst, stride);
  return interpolate<C, bicubic_pixel<C>>(by.matrix, picture, dst, stride);
}

// Python's round(v, 15) of a number between -1 and 1.
double rounded_to_15(double v) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.15f", v);
  return std::strtod(text.data(), nullptr);
}

}  // namespace

void apply_warp(const Warp& by, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  return picture.channels == 3 ? warp<3>(by, picture, dst, dst_stride) : warp<1>(by, picture, dst, dst_stride);
}

// torchvision.transforms.functional._get_inverse_affine_matrix
Effect affine_effect(const AffineTerms& terms, int height, int width, const Warp& look) {
  const double rotation = terms.angle * kRadians, shear_x = terms.shear_x * kRadians, shear_y = terms.shear_y * kRadians;
  const std::array<double, 2> centre = terms.centre.value_or(std::array<double, 2>{width * 0.5, height * 0.5});
  const double a = std::cos(rotation - shear_y) / std::cos(shear_y);
  const double b = -std::cos(rotation - shear_y) * std::tan(shear_x) / std::cos(shear_y) - std::sin(rotation);
  const double c = std::sin(rotation - shear_y) / std::cos(shear_y);
  const double d = -std::sin(rotation - shear_y) * std::tan(shear_x) / std::cos(shear_y) + std::cos(rotation);
  Effect effect{EffectKind::affine, 0, look};
  std::array<double, 6>& m = effect.warp.matrix;
  m = {d / terms.scale, -b / terms.scale, 0.0, -c / terms.scale, a / terms.scale, 0.0};
  const double x = -centre[0] - terms.translate_x, y = -centre[1] - terms.translate_y;
  m[2] += m[0] * x + m[1] * y;
  m[5] += m[3] * x + m[4] * y;
  m[2] += centre[0];
  m[5] += centre[1];
  return effect;
}

// PIL.Image.Image.rotate without expand
std::optional<Effect> rotation_effect(double angle, const std::optional<std::array<double, 2>>& given, int height,
                                      int width, const Warp& look) {
  angle = std::fmod(angle, 360.0);
  if (angle < 0) angle += 360.0;
  if (!given) {
    if (angle == 0) return std::nullopt;
    if (angle == 180) return Effect{EffectKind::rotate_180, 0, {}};
    if ((angle == 90 || angle == 270) && width == height)
      return Effect{angle == 90 ? EffectKind::rotate_90 : EffectKind::rotate_270, 0, {}};
  }
  const std::array<double, 2> centre = given.value_or(std::array<double, 2>{width / 2.0, height / 2.0});
  const double turn = -(angle * kRadians);
  const double cosine = rounded_to_15(std::cos(turn)), sine = rounded_to_15(std::sin(turn));
  Effect effect{EffectKind::affine, 0, look};
  std::array<double, 6>& m = effect.warp.matrix;
  m = {cosine, sine, 0.0, rounded_to_15(-std::sin(turn)), cosine, 0.0};
  m[2] = m[0] * -centre[0] + m[1] * -centre[1] + 0.0;
  m[5] = m[3] * -centre[0] + m[4] * -centre[1] + 0.0;
  m[2] += centre[0];
  m[5] += centre[1];
  return effect;
}

}  // namespace penstock
