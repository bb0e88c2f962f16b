// Augmentations: which effects a random step of a recipe has on one sample, drawn as torchvision's classes draw them.
//
// Threads: an Augmentation is immutable and may be called by any thread. Memory: held by shared_ptr, as recipes are.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "image/effects.h"
#include "order/torch_generator.h"

namespace penstock {

// The effects that follow each other on one sample.
using Effects = std::vector<Effect>;

class Augmentation {
 public:
  Augmentation() = default;
  Augmentation(const Augmentation&) = delete;
  Augmentation& operator=(const Augmentation&) = delete;
  virtual ~Augmentation() = default;

  // Appends the effects on a picture of this size.
  virtual void draw(TorchGenerator& generator, int height, int width, Effects& effects) const = 0;
};

using AugmentationPtr = std::shared_ptr<const Augmentation>;

// Effects that are not drawn.
struct FixedEffects final : Augmentation {
  Effects effects;
  void draw(TorchGenerator&, int, int, Effects&) const override;
};

// Augmentations in turn, with probability p. Before that one number is drawn.
struct Maybe final : Augmentation {
  double p = 0;
  bool inclusive = false;  // done where the number is p, too
  std::vector<AugmentationPtr> then;
  void draw(TorchGenerator&, int, int, Effects&) const override;
};

// ColorJitter.
struct Jitter final : Augmentation {
  // Of brightness, contrast, saturation, hue; none: left out.
  std::array<std::optional<std::array<double, 2>>, 4> ranges;
  void draw(TorchGenerator&, int, int, Effects&) const override;
};

// RandomRotation and RandomAffine.
struct RandomWarp final : Augmentation {
  bool rotates = true;  // only by Image.rotate
  std::array<double, 2> degrees{};
  std::optional<std::array<double, 2>> translate, scale, shear_x, shear_y;
  std::optional<std::array<double, 2>> centre;
  Warp look;
  void draw(TorchGenerator&, int, int, Effects&) const override;
};

// An operation of the automatic augmentations, as torchvision names it.
enum class AutoOperation : std::uint8_t {
  identity, shear_x, shear_y, translate_x, translate_y, rotate, brightness, color, contrast, sharpness, posterize,
  solarize, autocontrast, equalize, invert,
};

struct AutoChoice {
  AutoOperation operation = AutoOperation::identity;
  std::vector<double> magnitudes;  // by bin; empty: the operation has none, or `share` gives them
  double share = 0;  // of the width or height: magnitudes go linearly from 0 to this share of it; 0: they do not
  bool is_signed = false;
};

// What AutoAugment, RandAugment and TrivialAugmentWide have in common.
struct AutoLook {
  Warp look;
  int bins = 0;
  bool second = false;  // draws as transforms.v2 does
};

// The effect of one operation. `bin` counts from 0 and is below `bins`.
void add_auto_effect(const AutoChoice& choice, int bin, bool negative, const AutoLook& how, int height, int width,
                     Effects& effects);

// RandAugment and TrivialAugmentWide.
struct RandomChoices final : Augmentation {
  AutoLook how;
  std::vector<AutoChoice> choices;
  int count = 1;
  std::optional<int> bin;  // none: drawn
  void draw(TorchGenerator&, int, int, Effects&) const override;
};

// AutoAugment.
struct Policies final : Augmentation {
  struct Step {
    AutoChoice choice;
    double p = 0;
    int bin = 0;
  };
  AutoLook how;
  std::vector<std::array<Step, 2>> policies;
  void draw(TorchGenerator&, int, int, Effects&) const override;
};

// The magnitude of a bin: torch.linspace(0, share * side, bins)[bin].
[[nodiscard]] double linear_magnitude(double share, int side, int bins, int bin);

}  // namespace penstock
