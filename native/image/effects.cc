#include "image/effects.h"

#include <algorithm>
#include <cstring>

#include "image/colours.h"
#include "image/convert.h"

namespace penstock {
namespace {

using Table = std::array<std::uint8_t, 256>;
using Tables = std::array<Table, kMaxChannels>;
using Histograms = std::array<std::array<std::int64_t, 256>, kMaxChannels>;

const std::uint8_t* line(const ImagePart& picture, int y) { return picture.data + picture.row_stride * y; }

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
    case EffectKind::sharpness: return change_sharpness(factor, picture, dst, dst_stride);
    case EffectKind::affine: return apply_warp(effect.warp, picture, dst, dst_stride);
    case EffectKind::rotate_90:
    case EffectKind::rotate_180:
    case EffectKind::rotate_270: return transpose(effect.kind, picture, dst, dst_stride);
    case EffectKind::saturation:
      if (coloured) return change_saturation(factor, picture, dst, dst_stride);
      break;
    case EffectKind::hue:
      if (coloured) return change_hue(static_cast<std::uint8_t>(effect.value), picture, dst, dst_stride);
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
