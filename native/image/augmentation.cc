#include "image/augmentation.h"

#include <cmath>
#include <numbers>
#include <utility>

namespace penstock {
namespace {

constexpr double kDegrees = 180.0 / std::numbers::pi;  // math.degrees

double drawn_between(TorchGenerator& generator, const std::array<double, 2>& range) {
  return generator.uniform(range[0], range[1]);
}

Effect coloured(EffectKind kind, double value) { return {kind, value, {}}; }

Effect translated(double x, double y, int height, int width, const Warp& look) {
  AffineTerms terms;
  terms.translate_x = std::trunc(x);
  terms.translate_y = std::trunc(y);
  return affine_effect(terms, height, width, look);
}

Effect sheared(double x, double y, int height, int width, const Warp& look) {
  AffineTerms terms;
  terms.shear_x = std::atan(x) * kDegrees;
  terms.shear_y = std::atan(y) * kDegrees;
  terms.centre = std::array<double, 2>{0, 0};
  return affine_effect(terms, height, width, look);
}

bool has_magnitude(const AutoChoice& choice) { return choice.share != 0 || !choice.magnitudes.empty(); }

// Whether the sign of a magnitude is turned.
bool turned(TorchGenerator& generator, bool second) { return second ? generator.rand() <= 0.5 : generator.below(2) != 0; }

}  // namespace

double linear_magnitude(double share, int side, int bins, int bin) {
  // ATen's linspace kernel, in float32: from the nearer end.
  const auto end = static_cast<float>(share * side);
  if (bins == 1) return 0;
  const float step = end / static_cast<float>(bins - 1);
  if (bin < bins / 2) return step * static_cast<float>(bin);
  return std::fma(-step, static_cast<float>(bins - bin - 1), end);
}

void FixedEffects::draw(TorchGenerator&, int, int, Effects& to) const { to.insert(to.end(), effects.begin(), effects.end()); }

void Maybe::draw(TorchGenerator& generator, int height, int width, Effects& effects) const {
  const double number = generator.rand();
  if (inclusive ? number > p : number >= p) return;
  for (const AugmentationPtr& one : then) one->draw(generator, height, width, effects);
}

void Jitter::draw(TorchGenerator& generator, int, int, Effects& effects) const {
  constexpr std::array kKinds{EffectKind::brightness, EffectKind::contrast, EffectKind::saturation, EffectKind::hue};
  std::array<std::uint32_t, 4> order{};
  generator.permutation(order);
  std::array<double, 4> values{};
  for (std::size_t i = 0; i < 4; ++i)
    if (ranges[i]) values[i] = drawn_between(generator, *ranges[i]);
  for (const std::uint32_t i : order) {
    if (!ranges[i]) continue;
    // np.int32(hue_factor * 255).astype(np.uint8)
    const double value = kKinds[i] == EffectKind::hue ? static_cast<std::uint8_t>(static_cast<int>(values[i] * 255)) : values[i];
    effects.push_back(coloured(kKinds[i], value));
  }
}

void RandomWarp::draw(TorchGenerator& generator, int height, int width, Effects& effects) const {
  AffineTerms terms;
  terms.angle = drawn_between(generator, degrees);
  if (rotates) {
    if (const auto effect = rotation_effect(terms.angle, centre, height, width, look)) effects.push_back(*effect);
    return;
  }
  if (translate) {
    const double most_x = (*translate)[0] * width, most_y = (*translate)[1] * height;
    terms.translate_x = std::nearbyint(generator.uniform(-most_x, most_x));
    terms.translate_y = std::nearbyint(generator.uniform(-most_y, most_y));
  }
  if (scale) terms.scale = drawn_between(generator, *scale);
  if (shear_x) terms.shear_x = drawn_between(generator, *shear_x);
  if (shear_y) terms.shear_y = drawn_between(generator, *shear_y);
  terms.centre = centre;
  effects.push_back(affine_effect(terms, height, width, look));
}

void add_auto_effect(const AutoChoice& choice, int bin, bool negative, const AutoLook& how, int height, int width,
                     Effects& effects) {
  const auto at = static_cast<std::size_t>(bin);
  double magnitude = at < choice.magnitudes.size() ? choice.magnitudes[at] : 0.0;
  if (choice.share != 0) {
    const int side = choice.operation == AutoOperation::translate_x ? width : height;
    magnitude = linear_magnitude(choice.share, side, how.bins, bin);
  }
  if (negative) magnitude = -magnitude;
  const auto add = [&effects](const Effect& effect) { effects.push_back(effect); };
  switch (choice.operation) {
    case AutoOperation::identity: return;
    case AutoOperation::shear_x: return add(sheared(magnitude, 0, height, width, how.look));
    case AutoOperation::shear_y: return add(sheared(0, magnitude, height, width, how.look));
    case AutoOperation::translate_x: return add(translated(magnitude, 0, height, width, how.look));
    case AutoOperation::translate_y: return add(translated(0, magnitude, height, width, how.look));
    case AutoOperation::rotate:
      if (const auto effect = rotation_effect(magnitude, std::nullopt, height, width, how.look)) add(*effect);
      return;
    case AutoOperation::brightness: return add(coloured(EffectKind::brightness, 1.0 + magnitude));
    case AutoOperation::color: return add(coloured(EffectKind::saturation, 1.0 + magnitude));
    case AutoOperation::contrast: return add(coloured(EffectKind::contrast, 1.0 + magnitude));
    case AutoOperation::sharpness: return add(coloured(EffectKind::sharpness, 1.0 + magnitude));
    case AutoOperation::posterize: return add(coloured(EffectKind::posterize, std::trunc(magnitude)));
    case AutoOperation::solarize: return add(coloured(EffectKind::solarize, magnitude));
    case AutoOperation::autocontrast: return add(coloured(EffectKind::autocontrast, 0));
    case AutoOperation::equalize: return add(coloured(EffectKind::equalize, 0));
    case AutoOperation::invert: return add(coloured(EffectKind::invert, 0));
  }
}

void RandomChoices::draw(TorchGenerator& generator, int height, int width, Effects& effects) const {
  for (int i = 0; i < count; ++i) {
    const AutoChoice& choice = choices[generator.below(static_cast<std::uint32_t>(choices.size()))];
    if (!has_magnitude(choice)) {
      add_auto_effect(choice, 0, false, how, height, width, effects);
      continue;
    }
    const int drawn = bin ? *bin : static_cast<int>(generator.below(static_cast<std::uint32_t>(how.bins)));
    const bool negative = choice.is_signed && turned(generator, how.second);
    add_auto_effect(choice, drawn, negative, how, height, width, effects);
  }
}

void Policies::draw(TorchGenerator& generator, int height, int width, Effects& effects) const {
  const auto& policy = policies[generator.below(static_cast<std::uint32_t>(policies.size()))];
  std::array<double, 2> numbers{};
  std::array<bool, 2> negative{};
  if (!how.second) {  // all is drawn before anything is done
    for (double& number : numbers) number = generator.rand();
    for (bool& one : negative) one = generator.below(2) == 0;
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const Step& step = policy[i];
    if (how.second) numbers[i] = generator.rand();
    if (numbers[i] > step.p) continue;
    if (how.second && step.choice.is_signed) negative[i] = turned(generator, true);
    add_auto_effect(step.choice, step.bin, step.choice.is_signed && negative[i], how, height, width, effects);
  }
}

}  // namespace penstock
