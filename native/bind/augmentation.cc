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
  Effect effect{named("effect", nb::cast<std::string>(from["effect"]), kEffects), 0, {}};
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
      .def("__len__", [](const Effects& self) { return self.size(); });
  m.def("draw_effects", &draw_effects, "recipe"_a, "height"_a, "width"_a, "generator"_a);
  m.def("draw_effects_of_sample", [](const Recipe& recipe, int height, int width, SampleDraws& draws) {
    TorchGenerator generator(draws.next().word());
    return drawn_by(recipe, height, width, generator);
  }, "recipe"_a, "height"_a, "width"_a, "draws"_a);
  m.def("linear_magnitude", &linear_magnitude, "share"_a, "side"_a, "bins"_a, "bin"_a);
}

}  // namespace penstock
