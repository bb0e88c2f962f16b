#include "bind/augmentation.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <variant>

#include "bind/bind.h"
#include "image/recipe.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock {
namespace {

constexpr std::array<std::pair<std::string_view, EffectKind>, 12> kEffects{{
    {"brightness", EffectKind::brightness}, {"contrast", EffectKind::contrast}, {"saturation", EffectKind::saturation},
    {"sharpness", EffectKind::sharpness}, {"hue", EffectKind::hue}, {"posterize", EffectKind::posterize},
    {"solarize", EffectKind::solarize}, {"invert", EffectKind::invert}, {"autocontrast", EffectKind::autocontrast},
    {"equalize", EffectKind::equalize}, {"grayscale", EffectKind::grayscale}, {"affine", EffectKind::affine},
}};
constexpr std::array<std::pair<std::string_view, AutoOperation>, 15> kAutoOperations{{
    {"Identity", AutoOperation::identity}, {"ShearX", AutoOperation::shear_x}, {"ShearY", AutoOperation::shear_y},
    {"TranslateX", AutoOperation::translate_x}, {"TranslateY", AutoOperation::translate_y},
    {"Rotate", AutoOperation::rotate}, {"Brightness", AutoOperation::brightness}, {"Color", AutoOperation::color},
    {"Contrast", AutoOperation::contrast}, {"Sharpness", AutoOperation::sharpness},
    {"Posterize", AutoOperation::posterize}, {"Solarize", AutoOperation::solarize},
    {"AutoContrast", AutoOperation::autocontrast}, {"Equalize", AutoOperation::equalize},
    {"Invert", AutoOperation::invert},
}};
constexpr std::array<std::pair<std::string_view, Filter>, 3> kWarpFilters{{
    {"nearest", Filter::nearest}, {"bilinear", Filter::bilinear}, {"bicubic", Filter::bicubic},
}};

double number(nb::handle value) {
  const auto result = nb::cast<double>(value);
  if (!std::isfinite(result)) throw nb::value_error("a number of an augmentation is not finite");
  return result;
}

// At least `least`, and small enough for sums of such numbers to fit.
int whole(nb::handle value, int least, int most = 1 << 20) {
  const auto result = nb::cast<long long>(value);
  if (result < least || result > most) throw nb::value_error("a whole number of an augmentation is out of range");
  return static_cast<int>(result);
}

std::array<double, 2> two(nb::handle pair) { return {number(pair[0]), number(pair[1])}; }

// Two numbers between which torch draws.
std::array<double, 2> range(nb::handle pair) {
  const std::array<double, 2> ends = two(pair);
  if (!(ends[0] <= ends[1])) throw nb::value_error("a range of an augmentation is not (low, high)");
  return ends;
}

template <class F>
auto optional(nb::handle value, F read) -> std::optional<decltype(read(value))> {
  if (value.is_none()) return std::nullopt;
  return read(value);
}

Warp look_of(const nb::dict& from) {
  Warp look;
  look.filter = named("filter", nb::cast<std::string>(from["filter"]), kWarpFilters);
  const auto fill = nb::cast<nb::bytes>(from["fill"]);
  if (fill.size() == 0 || fill.size() > look.fill.size()) throw nb::value_error("a fill is not one byte a channel");
  std::memcpy(look.fill.data(), fill.c_str(), fill.size());
  return look;
}

Effect effect_of(const nb::dict& from) {
  Effect effect{named("effect", nb::cast<std::string>(from["effect"]), kEffects), 0, {}, nullptr};
  if (effect.kind == EffectKind::affine) {
    effect.warp = look_of(from);
    for (std::size_t i = 0; i < 6; ++i) effect.warp.matrix[i] = number(from["matrix"][i]);
  } else if (from.contains("value")) {
    effect.value = number(from["value"]);
  }
  if (effect.kind == EffectKind::posterize && !(effect.value >= 1 && effect.value <= 8))
    throw nb::value_error("posterize keeps 1 to 8 bits");
  if (effect.kind == EffectKind::hue && !(effect.value >= 0 && effect.value <= 255))
    throw nb::value_error("a shift of the hue is a byte");
  return effect;
}

AutoChoice choice_of(nb::handle given, const AutoLook& how) {
  const auto from = nb::cast<nb::dict>(given);
  AutoChoice choice;
  choice.operation = named("operation", nb::cast<std::string>(from["operation"]), kAutoOperations);
  for (nb::handle one : from["magnitudes"]) choice.magnitudes.push_back(number(one));
  choice.share = number(from["share"]);
  choice.is_signed = nb::cast<bool>(from["signed"]);
  if (!choice.magnitudes.empty() && choice.magnitudes.size() != static_cast<std::size_t>(how.bins))
    throw nb::value_error("an operation has not one magnitude a bin");
  if (choice.operation == AutoOperation::posterize)
    for (const double bits : choice.magnitudes)
      if (!(bits >= 1 && bits <= 8)) throw nb::value_error("posterize keeps 1 to 8 bits");
  return choice;
}

AutoLook auto_look_of(const nb::dict& from) {
  return {look_of(from), whole(from["bins"], 1), nb::cast<bool>(from["second"])};
}

AugmentationPtr choices_of(const nb::dict& from) {
  auto made = std::make_shared<RandomChoices>();
  made->how = auto_look_of(from);
  made->count = whole(from["count"], 0, 1024);
  made->bin = optional(from["bin"], [&](nb::handle bin) { return whole(bin, 0, made->how.bins - 1); });
  for (nb::handle one : from["choices"]) made->choices.push_back(choice_of(one, made->how));
  if (made->choices.empty()) throw nb::value_error("there is nothing to choose from");
  return made;
}

AugmentationPtr policies_of(const nb::dict& from) {
  auto made = std::make_shared<Policies>();
  made->how = auto_look_of(from);
  for (nb::handle policy : from["policies"]) {
    auto& steps = made->policies.emplace_back();
    for (std::size_t i = 0; i < 2; ++i) {
      nb::handle step = policy[i];
      steps[i] = {choice_of(step[nb::int_(0)], made->how), number(step[nb::int_(1)]),
                  whole(step[nb::int_(2)], 0, made->how.bins - 1)};
    }
  }
  if (made->policies.empty()) throw nb::value_error("there is nothing to choose from");
  return made;
}

AugmentationPtr warp_of(const nb::dict& from) {
  auto made = std::make_shared<RandomWarp>();
  made->rotates = nb::cast<bool>(from["rotates"]);
  made->degrees = range(from["degrees"]);
  made->translate = optional(from["translate"], two);
  made->scale = optional(from["scale"], range);
  made->shear_x = optional(from["shear_x"], range);
  made->shear_y = optional(from["shear_y"], range);
  made->centre = optional(from["center"], two);
  made->look = look_of(from);
  if (made->scale && !((*made->scale)[0] > 0)) throw nb::value_error("a scale is not positive");
  return made;
}

std::vector<AugmentationPtr> parts_of(nb::handle from) {
  std::vector<AugmentationPtr> parts;
  for (nb::handle one : from) parts.push_back(augmentation_from(nb::cast<nb::dict>(one)));
  return parts;
}

// What was drawn for one picture.
nb::object drawn_by(const Recipe& recipe, int height, int width, TorchGenerator& generator) {
  const auto* const augment = recipe.operations.size() == 1 ? std::get_if<Augment>(&recipe.operations[0]) : nullptr;
  if (augment == nullptr || height <= 0 || width <= 0) throw nb::value_error("the recipe is no augmentation alone");
  Effects effects;
  augment->augmentation->draw(generator, height, width, effects);
  return nb::cast(std::move(effects));
}

nb::list blurs_of(const Effects& effects) {
  nb::list result;
  for (std::size_t i = 0; i < effects.size(); ++i) {
    const Effect& effect = effects[i];
    if (effect.kind == EffectKind::blur)
      result.append(nb::make_tuple(i, effect.weights->height, effect.weights->width, effect.value,
                                   effect.weights->second));
  }
  return result;
}

void give_weights(Effects& effects, std::size_t number,
                  const nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>& weights) {
  if (number >= effects.size() || effects[number].kind != EffectKind::blur) throw nb::value_error("the effect is no blur");
  if (!can_blur()) throw nb::value_error("this processor has no fused instructions");
  Effect& effect = effects[number];
  const auto height = static_cast<std::size_t>(effect.weights->height), width = static_cast<std::size_t>(effect.weights->width);
  if (weights.shape(0) != height || weights.shape(1) != width) throw nb::value_error("another number of weights");
  effect.weights = std::make_shared<BlurWeights>(
      BlurWeights{effect.weights->height, effect.weights->width, effect.weights->second,
                  {weights.data(), weights.data() + height * width}});
}

using Numbers = nb::ndarray<nb::numpy, const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Of each sample from its operation `first` on: (height, width, sigma, second) of the blurs that lack weights.
nb::list foreseen_blurs(const Recipe& recipe, std::uint64_t seed, std::uint64_t epoch, const Numbers& samples,
                        const Numbers& positions, std::uint32_t first) {
  if (samples.size() != positions.size()) throw nb::value_error("there are not as many positions as samples");
  nb::list found;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    SampleDraws draws(epoch_key(seed, epoch), static_cast<std::uint64_t>(samples.data()[i]),
                      static_cast<std::uint64_t>(positions.data()[i]));
    draws.set_count(first);
    for (const Effect& blur : blurs_without_weights(recipe, draws))
      found.append(nb::make_tuple(blur.weights->height, blur.weights->width, blur.value, blur.weights->second));
  }
  return found;
}

using Weights = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void keep_blur_weights(const Weights& weights, double sigma, bool second) {
  if (weights.shape(0) > 255 || weights.shape(1) > 255 || weights.shape(0) % 2 == 0 || weights.shape(1) % 2 == 0)
    throw nb::value_error("a blur has an odd number of weights");
  keep_weights(std::make_shared<BlurWeights>(BlurWeights{static_cast<int>(weights.shape(0)), static_cast<int>(weights.shape(1)),
                                                         second, {weights.data(), weights.data() + weights.size()}}),
               sigma);
}

// No Python code runs between the generator's two methods: no other thread draws in between.
nb::object draw_effects(const Recipe& recipe, int height, int width, nb::handle torch_generator) {
  using State = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  nb::object given = torch_generator.attr("get_state")();
  const auto state = nb::cast<State>(given);
  const std::span<std::uint8_t> bytes(state.data(), state.size());
  TorchGenerator generator(0);
  if (!generator.load(bytes)) throw nb::value_error("torch's generator has another state than is known");
  nb::object drawn = drawn_by(recipe, height, width, generator);
  generator.store(bytes);
  torch_generator.attr("set_state")(given);
  return drawn;
}

}  // namespace

AugmentationPtr augmentation_from(const nb::dict& from) {
  const auto kind = nb::cast<std::string>(from["kind"]);
  if (kind == "choices") return choices_of(from);
  if (kind == "policies") return policies_of(from);
  if (kind == "warp") return warp_of(from);
  if (kind == "effects") {
    auto made = std::make_shared<FixedEffects>();
    for (nb::handle one : from["effects"]) made->effects.push_back(effect_of(nb::cast<nb::dict>(one)));
    return made;
  }
  if (kind == "maybe") {
    auto made = std::make_shared<Maybe>();
    made->p = number(from["p"]);
    made->inclusive = nb::cast<bool>(from["inclusive"]);
    made->then = parts_of(from["then"]);
    return made;
  }
  if (kind == "blur") {
    auto made = std::make_shared<RandomBlur>();
    made->sigma = range(from["sigma"]);
    made->height = whole(from["height"], 1, 255);
    made->width = whole(from["width"], 1, 255);
    made->second = nb::cast<bool>(from["second"]);
    if (made->height % 2 == 0 || made->width % 2 == 0) throw nb::value_error("a blur has an odd number of weights");
    return made;
  }
  if (kind == "jitter") {
    auto made = std::make_shared<Jitter>();
    constexpr std::array kNames{"brightness", "contrast", "saturation", "hue"};
    for (std::size_t i = 0; i < kNames.size(); ++i) made->ranges[i] = optional(from[kNames[i]], range);
    const auto& hue = made->ranges[3];
    if (hue && !(-0.5 <= (*hue)[0] && (*hue)[1] <= 0.5)) throw nb::value_error("a hue is not within -0.5 .. 0.5");
    return made;
  }
  throw nb::value_error(("augmentation '" + kind + "' is not known").c_str());
}

void bind_augmentation(nb::module_& m) {
  nb::class_<Effects>(m, "Effects")
      .def("__len__", [](const Effects& self) { return self.size(); })
      .def("blurs", &blurs_of)
      .def("give_weights", &give_weights, "number"_a, "weights"_a);
  m.def("draw_effects", &draw_effects, "recipe"_a, "height"_a, "width"_a, "generator"_a);
  m.def("draw_effects_of_sample", [](const Recipe& recipe, int height, int width, SampleDraws& draws) {
    TorchGenerator generator(draws.next().word());
    return drawn_by(recipe, height, width, generator);
  }, "recipe"_a, "height"_a, "width"_a, "draws"_a);
  m.def("foreseen_blurs", &foreseen_blurs, "recipe"_a, "seed"_a, "epoch"_a, "samples"_a, "positions"_a, "first"_a);
  m.def("keep_blur_weights", &keep_blur_weights, "weights"_a, "sigma"_a, "second"_a);
  m.def("linear_magnitude", &linear_magnitude, "share"_a, "side"_a, "bins"_a, "bin"_a);
}

}  // namespace penstock
