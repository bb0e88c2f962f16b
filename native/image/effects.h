// Effects: what one step of an augmentation does to the colours and places of all pixels of an 8-bit picture.
//
// Sources of the arithmetic: Pillow's ImageEnhance, ImageOps and Image.rotate, and its libImaging (Blend.c, Convert.c,
// Filter.c, Geometry.c); torchvision.transforms.functional for what it asks Pillow for.
//
// Threads: pure functions and plain values. Memory: pictures are the caller's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "image/planes.h"
#include "image/resize.h"

namespace penstock {

enum class EffectKind : std::uint8_t {
  brightness,    // ImageEnhance.Brightness by the factor `value`; so the next three
  contrast,
  saturation,    // ImageEnhance.Color
  sharpness,
  hue,           // H + value modulo 256, in Pillow's mode HSV
  posterize,     // ImageOps.posterize to `value` bits, 1 .. 8
  solarize,      // ImageOps.solarize with the threshold `value`
  invert,        // ImageOps.invert; so the next two
  autocontrast,
  equalize,
  grayscale,     // convert("L"), repeated to the channels of the picture
  affine,        // Image.transform(AFFINE) by `warp`
  rotate_90,     // Image.transpose, counterclockwise
  rotate_180,
  rotate_270,
};

// A mapping from the places of a result to places in a picture: x' = a x + b y + c, y' = d x + e y + f.
struct Warp {
  std::array<double, 6> matrix{1, 0, 0, 0, 1, 0};
  Filter filter = Filter::nearest;  // nearest, bilinear or bicubic
  std::array<std::uint8_t, kMaxChannels> fill{};  // where that lies outside the picture
};

struct Effect {
  EffectKind kind = EffectKind::invert;
  double value = 0;
  Warp warp;
};

// The numbers that torchvision.transforms.functional.affine takes; angles in degrees.
struct AffineTerms {
  double angle = 0, translate_x = 0, translate_y = 0, scale = 1, shear_x = 0, shear_y = 0;
  std::optional<std::array<double, 2>> centre;  // x, y; none: the picture's
};

// functional.affine() and rotate() of a PIL image; `look`: the filter and the fill. None: nothing is done.
[[nodiscard]] Effect affine_effect(const AffineTerms& terms, int height, int width, const Warp& look);
[[nodiscard]] std::optional<Effect> rotation_effect(double angle, const std::optional<std::array<double, 2>>& centre,
                                                    int height, int width, const Warp& look);

// Whether Pillow's image has no info after this step.
[[nodiscard]] bool loses_info(const Effect& effect, int channels);

// Writes what an effect makes of a whole picture to dst; both are of height x width and do not overlap.
void apply_effect(const Effect& effect, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride);

// A part of it: `kind` is affine.
void apply_warp(const Warp& warp, const ImagePart& picture, std::uint8_t* dst, std::ptrdiff_t dst_stride);

}  // namespace penstock
