#include "image/effects.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "image/convert.h"

namespace penstock {
namespace {

using Table = std::array<std::uint8_t, 256>;
using Tables = std::array<Table, kMaxChannels>;
using Histograms = std::array<std::array<std::int64_t, 256>, kMaxChannels>;

const std::uint8_t* line(const ImagePart& picture, int y) { return picture.data + picture.row_stride * y; }

// ImagingBlend of one value: what lies between `from` (factor 0) and `to` (factor 1), or beyond.
std::uint8_t blended(int from, int to, float factor) {
  const float value = static_cast<float>(from) + factor * static_cast<float>(to - from);
  return value <= 0.0f ? 0 : value >= 255.0f ? 255 : static_cast<std::uint8_t>(value);
}

std::uint8_t grey_of(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((19595u * rgb[0] + 38470u * rgb[1] + 7471u * rgb[2] + 0x8000u) >> 16);
}

// ---- by a table ----

void by_table(const Table& table, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const int bytes = picture.width * picture.channels;
  for (int y = 0; y < picture.height; ++y, dst += dst_stride) {
    const std::uint8_t* const src = line(picture, y);
    for (int i = 0; i < bytes; ++i) dst[i] = table[src[i]];
  }
}

void by_tables(const Tables& tables, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  if (picture.channels == 1) return by_table(tables[0], picture, dst, dst_stride);
  for (int y = 0; y < picture.height; ++y, dst += dst_stride) {
    const std::uint8_t* const src = line(picture, y);
    for (int i = 0; i < 3 * picture.width; i += 3)
      for (std::size_t c = 0; c < 3; ++c) dst[i + static_cast<int>(c)] = tables[c][src[i + static_cast<int>(c)]];
  }
}

template <class F>
Table table_of(F value) {
  Table table;
  for (int v = 0; v < 256; ++v) table[static_cast<std::size_t>(v)] = value(v);
  return table;
}

Histograms histograms_of(const ImagePart& picture) {
  Histograms counts{};
  const auto channels = static_cast<std::size_t>(picture.channels);
  for (int y = 0; y < picture.height; ++y) {
    const std::uint8_t* src = line(picture, y);
    for (int x = 0; x < picture.width; ++x, src += channels)
      for (std::size_t c = 0; c < channels; ++c) ++counts[c][src[c]];
  }
  return counts;
}

// int(ImageStat.Stat(image.convert("L")).mean[0] + 0.5)
int mean_grey(const ImagePart& picture) {
  std::int64_t sum = 0;
  for (int y = 0; y < picture.height; ++y) {
    const std::uint8_t* src = line(picture, y);
    std::uint32_t row = 0;  // of at most 2^24 pixels; larger pictures are refused before
    if (picture.channels == 1) {
      for (int x = 0; x < picture.width; ++x) row += src[x];
    } else {
      for (int x = 0; x < picture.width; ++x, src += 3) row += grey_of(src);
    }
    sum += row;
  }
  const double pixels = static_cast<double>(picture.width) * picture.height;
  return static_cast<int>(static_cast<double>(sum) / pixels + 0.5);
}

Table stretched(const std::array<std::int64_t, 256>& counts) {
  const auto used = [](std::int64_t count) { return count != 0; };
  const auto low = static_cast<int>(std::find_if(counts.begin(), counts.end(), used) - counts.begin());
  const int high = 255 - static_cast<int>(std::find_if(counts.rbegin(), counts.rend(), used) - counts.rbegin());
  if (high <= low) return table_of([](int v) { return static_cast<std::uint8_t>(v); });
  const double scale = 255.0 / (high - low);
  const double offset = -low * scale;
  return table_of([&](int v) {
    return static_cast<std::uint8_t>(std::clamp(static_cast<int>(v * scale + offset), 0, 255));
  });
}

Table equalized(const std::array<std::int64_t, 256>& counts) {
  std::int64_t sum = 0, last = 0;
  int values = 0;
  for (const std::int64_t count : counts) {
    if (count == 0) continue;
    sum += count;
    last = count;
    ++values;
  }
  const std::int64_t step = values > 1 ? (sum - last) / 255 : 0;
  if (step == 0) return table_of([](int v) { return static_cast<std::uint8_t>(v); });
  std::int64_t n = step / 2;
  return table_of([&](int v) {
    const auto value = static_cast<std::uint8_t>(std::min<std::int64_t>(n / step, 255));
    n += counts[static_cast<std::size_t>(v)];
    return value;
  });
}

template <class F>
void by_histograms(F table, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const Histograms counts = histograms_of(picture);
  Tables tables;
  for (std::size_t c = 0; c < static_cast<std::size_t>(picture.channels); ++c) tables[c] = table(counts[c]);
  by_tables(tables, picture, dst, dst_stride);
}

// ---- pixel by pixel ----

template <class F>
void by_pixel(F pixel, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  for (int y = 0; y < picture.height; ++y, dst += dst_stride) {
    const std::uint8_t* src = line(picture, y);
    std::uint8_t* to = dst;
    for (int x = 0; x < picture.width; ++x, src += 3, to += 3) pixel(src, to);
  }
}

void saturate(float factor, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  by_pixel([factor](const std::uint8_t* from, std::uint8_t* to) {
    const int grey = grey_of(from);
    for (int c = 0; c < 3; ++c) to[c] = blended(grey, from[c], factor);
  }, picture, dst, dst_stride);
}

// rgb2hsv_row of Convert.c; v is the largest channel.
struct Hsv {
  std::uint8_t h, s, v;
};

Hsv hsv_of(const std::uint8_t* rgb) {
  const int r = rgb[0], g = rgb[1], b = rgb[2];
  const int most = std::max({r, g, b}), least = std::min({r, g, b});
  if (most == least) return {0, 0, static_cast<std::uint8_t>(most)};
  const auto range = static_cast<float>(most - least);
  const float s = range / static_cast<float>(most);
  const float rc = static_cast<float>(most - r) / range;
  const float gc = static_cast<float>(most - g) / range;
  const float bc = static_cast<float>(most - b) / range;
  float h = 0;
  if (r == most) {
    h = bc - gc;
  } else if (g == most) {
    h = static_cast<float>(2.0 + static_cast<double>(rc) - static_cast<double>(bc));
  } else {
    h = static_cast<float>(4.0 + static_cast<double>(gc) - static_cast<double>(rc));
  }
  // fmod(h / 6 + 1, 1): h / 6 + 1 lies in [5/6, 11/6], where the subtraction is exact.
  const double turned = static_cast<double>(h) / 6.0 + 1.0;
  h = static_cast<float>(turned >= 1.0 ? turned - 1.0 : turned);
  const auto whole = [](float value) {
    return static_cast<std::uint8_t>(std::clamp(static_cast<int>(static_cast<double>(value) * 255.0), 0, 255));
  };
  return {whole(h), whole(s), static_cast<std::uint8_t>(most)};
}

// hsv2rgb of Convert.c
void rgb_of(Hsv hsv, std::uint8_t* rgb) {
  const std::uint8_t v = hsv.v;
  if (hsv.s == 0) {
    rgb[0] = rgb[1] = rgb[2] = v;
    return;
  }
  const double sixth = static_cast<double>(static_cast<float>(hsv.h)) * 6.0 / 255.0;
  const int i = static_cast<int>(sixth);
  const auto f = static_cast<float>(sixth - static_cast<double>(static_cast<float>(i)));
  const auto fs = static_cast<float>(static_cast<double>(static_cast<float>(hsv.s)) / 255.0);
  const auto part = [v](double share) {  // round(), of a number in [0, 255]
    const double exact = static_cast<double>(v) * share;
    const int below = static_cast<int>(exact);
    return static_cast<std::uint8_t>(below + (exact - below >= 0.5 ? 1 : 0));
  };
  const std::uint8_t p = part(1.0 - static_cast<double>(fs));
  const std::uint8_t q = part(1.0 - static_cast<double>(fs * f));
  const std::uint8_t t = part(1.0 - static_cast<double>(fs) * (1.0 - static_cast<double>(f)));
  const std::array<std::array<std::uint8_t, 3>, 6> sides{
      {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}}};
  std::copy_n(sides[static_cast<std::size_t>(i % 6)].begin(), 3, rgb);
}

void shift_hue(std::uint8_t by, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  by_pixel([by](const std::uint8_t* from, std::uint8_t* to) {
    Hsv hsv = hsv_of(from);
    hsv.h = static_cast<std::uint8_t>(hsv.h + by);
    rgb_of(hsv, to);
  }, picture, dst, dst_stride);
}

// ---- sharpness ----

// ImagingFilter3x3 with ImageFilter.SMOOTH, then ImagingBlend with the picture. The pixels at the edges stay.
void sharpen_row(const std::uint8_t* below, const std::uint8_t* at, const std::uint8_t* above, int bytes, int step,
                 float factor, std::uint8_t* dst) {
  constexpr float kSide = 1.0f / 13.0f, kMiddle = 5.0f / 13.0f;
  const auto f = [](std::uint8_t v) { return static_cast<float>(v); };
  for (int i = step; i < bytes - step; ++i) {
    float sum = 0.5f;
    sum += f(below[i - step]) * kSide + f(below[i]) * kSide + f(below[i + step]) * kSide;
    sum += f(at[i - step]) * kSide + f(at[i]) * kMiddle + f(at[i + step]) * kSide;
    sum += f(above[i - step]) * kSide + f(above[i]) * kSide + f(above[i + step]) * kSide;
    const int smooth = static_cast<int>(std::clamp(sum, 0.0f, 255.0f));
    dst[i] = blended(smooth, at[i], factor);
  }
}

void sharpen(float factor, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const int step = picture.channels, bytes = picture.width * step;
  const bool filters = picture.width >= 3 && picture.height >= 3;
  for (int y = 0; y < picture.height; ++y, dst += dst_stride) {
    const std::uint8_t* const at = line(picture, y);
    std::memcpy(dst, at, static_cast<std::size_t>(bytes));
    if (filters && y > 0 && y + 1 < picture.height)
      sharpen_row(line(picture, y + 1), at, line(picture, y - 1), bytes, step, factor, dst);
  }
}

// ---- places ----

void transpose(EffectKind kind, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const int channels = picture.channels, bottom = picture.height - 1, right = picture.width - 1;
  for (int y = 0; y < picture.height; ++y, dst += dst_stride) {
    std::uint8_t* to = dst;
    for (int x = 0; x < picture.width; ++x, to += channels) {
      const int row = kind == EffectKind::rotate_180 ? bottom - y : kind == EffectKind::rotate_90 ? x : bottom - x;
      const int column = kind == EffectKind::rotate_180 ? right - x : kind == EffectKind::rotate_90 ? right - y : y;
      std::copy_n(line(picture, row) + std::ptrdiff_t{column} * channels, channels, to);
    }
  }
}

}  // namespace

bool loses_info(const Effect& effect, int channels) {
  switch (effect.kind) {
    case EffectKind::brightness:
    case EffectKind::contrast: return true;
    case EffectKind::hue:
    case EffectKind::grayscale: return channels == 3;
    default: return false;
  }
}

void apply_effect(const Effect& effect, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const auto factor = static_cast<float>(effect.value);
  const bool coloured = picture.channels == 3;
  const auto tabled = [&](const Table& table) { by_table(table, picture, dst, dst_stride); };
  switch (effect.kind) {
    case EffectKind::brightness: return tabled(table_of([factor](int v) { return blended(0, v, factor); }));
    case EffectKind::contrast: {
      const int mean = mean_grey(picture);
      return tabled(table_of([=](int v) { return blended(mean, v, factor); }));
    }
    case EffectKind::posterize: {
      const int mask = ~((1 << (8 - static_cast<int>(effect.value))) - 1);
      return tabled(table_of([mask](int v) { return static_cast<std::uint8_t>(v & mask); }));
    }
    case EffectKind::solarize: {
      const double threshold = effect.value;
      return tabled(table_of([=](int v) { return static_cast<std::uint8_t>(v < threshold ? v : 255 - v); }));
    }
    case EffectKind::invert: return tabled(table_of([](int v) { return static_cast<std::uint8_t>(255 - v); }));
    case EffectKind::autocontrast: return by_histograms(stretched, picture, dst, dst_stride);
    case EffectKind::equalize: return by_histograms(equalized, picture, dst, dst_stride);
    case EffectKind::sharpness: return sharpen(factor, picture, dst, dst_stride);
    case EffectKind::affine: return apply_warp(effect.warp, picture, dst, dst_stride);
    case EffectKind::rotate_90:
    case EffectKind::rotate_180:
    case EffectKind::rotate_270: return transpose(effect.kind, picture, dst, dst_stride);
    case EffectKind::saturation:
      if (coloured) return saturate(factor, picture, dst, dst_stride);
      break;
    case EffectKind::hue:
      if (coloured) return shift_hue(static_cast<std::uint8_t>(effect.value), picture, dst, dst_stride);
      break;
    case EffectKind::grayscale:
      if (coloured) return to_grayscale(picture, {0, 0, picture.width, picture.height}, 3, dst, dst_stride);
      break;
  }
  // A grey picture has no colours to change.
  for (int y = 0; y < picture.height; ++y, dst += dst_stride)
    std::memcpy(dst, line(picture, y), static_cast<std::size_t>(picture.width) * static_cast<std::size_t>(picture.channels));
}

}  // namespace penstock
