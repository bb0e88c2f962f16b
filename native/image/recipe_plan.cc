// Draws a sample's parameters and lays out its segments; the algorithms are those of
// torchvision.transforms' get_params (RandomResizedCrop, RandomCrop) and functional (resize, center_crop).
#include <algorithm>
#include <cmath>

#include "image/recipe.h"

namespace penstock {
namespace {

constexpr const char* kImpossible = "parameters that torchvision would not have drawn";
constexpr int kMaxEffectSide = 1 << 15;  // beyond that Pillow's fixed-point arithmetic takes another way
constexpr const char* kTooLong = "an axis would be longer than native code allows";

// Python's int(round(x)), for x that fits: half to even, as the default rounding mode does.
int round_half_even(double x) { return static_cast<int>(std::nearbyint(x)); }

// Python's int(a * b / c): the product is exact, the division rounds once.
int scaled(std::int64_t a, std::int64_t b, std::int64_t c) {
  const double quotient = static_cast<double>(a * b) / static_cast<double>(c);
  return quotient < kMaxAxis ? static_cast<int>(quotient) : -1;
}

bool in_range(Extent size) {
  return size.height > 0 && size.width > 0 && size.height <= kMaxAxis && size.width <= kMaxAxis;
}

// The size that `op` gives a picture; negative when it is out of range.
Extent resized(const Resize& op, Extent from) {
  if (op.size.height > 0) return op.size;
  const int shorter = std::min(from.height, from.width), longer = std::max(from.height, from.width);
  int new_short = 0, new_long = 0;
  if (op.shorter > 0) {
    new_short = op.shorter;
    new_long = scaled(op.shorter, longer, shorter);
    if (op.longest > 0 && (new_long < 0 || new_long > op.longest)) {
      if (new_long < 0) return {-1, -1};
      new_short = scaled(op.longest, new_short, new_long);
      new_long = op.longest;
    }
  } else {
    new_short = scaled(op.longest, shorter, longer);
    new_long = op.longest;
  }
  return from.width <= from.height ? Extent{new_long, new_short} : Extent{new_short, new_long};
}

Box crop_box(int top, int left, int height, int width) { return {left, top, left + width, top + height}; }

}  // namespace

Box draw_resized_crop(const std::array<double, 2>& scale, const std::array<double, 2>& ratio, Draws draws, Extent from) {
  const double area = static_cast<double>(from.height) * from.width;
  const double log_low = std::log(ratio[0]), log_high = std::log(ratio[1]);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * draws.uniform(scale[0], scale[1]);
    const double shape = std::exp(draws.uniform(log_low, log_high));
    const double w = std::nearbyint(std::sqrt(target * shape)), h = std::nearbyint(std::sqrt(target / shape));
    if (w > 0 && w <= from.width && h > 0 && h <= from.height) {
      const int width = static_cast<int>(w), height = static_cast<int>(h);
      return draw_crop({height, width}, draws, from);
    }
  }
  const double shape = static_cast<double>(from.width) / from.height;
  int width = from.width, height = from.height;
  if (shape < ratio[0]) {
    height = round_half_even(width / ratio[0]);
  } else if (shape > ratio[1]) {
    width = round_half_even(height * ratio[1]);
  }
  return crop_box((from.height - height) / 2, (from.width - width) / 2, height, width);
}

Box draw_crop(Extent size, Draws draws, Extent padded) {
  const auto offset = [&draws](int room) { return static_cast<int>(draws.below(static_cast<std::uint32_t>(room) + 1)); };
  const int top = offset(padded.height - size.height);
  const int left = offset(padded.width - size.width);
  return crop_box(top, left, size.height, size.width);
}

// Applies each operation to the last segment.
class Planner {
 public:
  Planner(const Recipe& recipe, RecipeScratch& scratch, SampleDraws draws)
      : recipe_(recipe), scratch_(scratch), draws_(draws) {}
  Planner(const Recipe& recipe, RecipeScratch& scratch, const std::vector<Drawn>& given)
      : recipe_(recipe), scratch_(scratch), draws_({}, 0, 0), given_(&given) {}

  Outcome plan(Extent source) {
    scratch_.used_ = 0;
    scratch_.padded_ = false;
    scratch_.drawn_.resize(recipe_.operations.size());
    channels_ = recipe_.channels;
    scratch_.open_segment(source, channels_);
    for (Drawn& drawn : scratch_.drawn_) {
      drawn.effects.clear();
      drawn.box = {};
    }
    for (index_ = 0; index_ < recipe_.operations.size(); ++index_) {
      const Outcome outcome = std::visit(*this, recipe_.operations[index_]);
      if (!outcome.ok()) return outcome;
    }
    Segment& last = scratch_.current();
    last.size = {last.y.size(), last.x.size()};
    return scratch_.look_back() ? Outcome::success() : Outcome::to_python("a resize that native code does not reproduce");
  }

  Outcome operator()(const RandomResizedCrop& op) {
    const Box box = given_ != nullptr ? given().box : draw_resized_crop(op.scale, op.ratio, draws_.next(), size());
    drawn().box = box;
    if (given_ != nullptr && !inside(box)) return Outcome::to_python(kImpossible);
    if (box.x1 <= box.x0 || box.y1 <= box.y0) return Outcome::to_python("RandomResizedCrop drew an empty crop");
    crop(box);
    Sampling sampling = op.sampling;
    if (given_ != nullptr && given().filter) sampling.filter = *given().filter;
    if (!Resizer::supported(sampling.filter, sampling.arithmetic, sampling.antialias))
      return Outcome::to_python("an interpolation that native code does not reproduce");
    return resize(op.size, sampling);
  }

  Outcome operator()(const Resize& op) {
    const Extent to = resized(op, size());
    if (!in_range(to)) return Outcome::to_python("the resized image would be empty or too large");
    return resize(to, op.sampling);
  }

  Outcome operator()(const CenterCrop& op) {
    AxisMap& x = scratch_.current().x;
    AxisMap& y = scratch_.current().y;
    scratch_.padded_ |= op.size.width > x.size() || op.size.height > y.size();
    const bool ok = centre(x, op.size.width, op.fill) && centre(y, op.size.height, op.fill);
    return ok ? Outcome::success() : Outcome::to_python(kTooLong);
  }

  Outcome operator()(const RandomCrop& op) {
    constexpr const char* kCannotPad = "padding that torchvision refuses, or repeats a reflection for";
    Margins margins = op.padding;
    if (!op.pad_once) {
      if (!pad(op.padding, op.mode, op.fill)) return Outcome::to_python(kCannotPad);
      margins = {};
    }
    const int more_x = op.size.width - size().width - margins.left - margins.right;
    const int more_y = op.size.height - size().height - margins.top - margins.bottom;
    Margins needed;
    if (op.pad_if_needed && more_x > 0) needed.left = needed.right = more_x;
    if (op.pad_if_needed && more_y > 0) needed.top = needed.bottom = more_y;
    const Margins step{margins.left + needed.left, margins.top + needed.top, margins.right + needed.right,
                       margins.bottom + needed.bottom};
    if (!pad(step, op.mode, op.fill)) return Outcome::to_python(kCannotPad);
    drawn().padding = {op.padding.left + needed.left, op.padding.top + needed.top, op.padding.right + needed.right,
                       op.padding.bottom + needed.bottom};
    const Extent padded = size();
    if (padded.height < op.size.height || padded.width < op.size.width)
      return Outcome::to_python("RandomCrop is larger than the image");
    if (given_ != nullptr) {
      const Box box = given().box;
      if (!inside(box) || box.x1 - box.x0 != op.size.width || box.y1 - box.y0 != op.size.height)
        return Outcome::to_python(kImpossible);
      drawn().box = box;
      crop(box);
      return Outcome::success();
    }
    drawn().box = draw_crop(op.size, draws_.next(), padded);
    crop(drawn().box);
    return Outcome::success();
  }

  Outcome operator()(const RandomFlip& op) {
    drawn().flip = given_ != nullptr ? given().flip : draws_.next().uniform() < op.p;
    if (drawn().flip) (op.horizontal ? scratch_.current().x : scratch_.current().y).flip();
    return Outcome::success();
  }

  Outcome operator()(const Pad& op) {
    drawn().padding = op.padding;
    const bool ok = pad(op.padding, op.mode, op.fill);
    return ok ? Outcome::success() : Outcome::to_python("padding that torchvision refuses, or repeats a reflection for");
  }

  Outcome operator()(const Augment& op) {
    Effects& effects = drawn().effects;
    if (given_ != nullptr) {
      effects = given().effects;
    } else {
      TorchGenerator generator(draws_.next().word());
      op.augmentation->draw(generator, size().height, size().width, effects);
    }
    if (effects.empty()) return Outcome::success();
    if (size().height > kMaxEffectSide || size().width > kMaxEffectSide)
      return Outcome::to_python("a picture too large for effects");
    for (const Effect& effect : effects) scratch_.padded_ |= loses_info(effect, channels_);
    scratch_.current().operation = index_;
    scratch_.close_segment(Segment::End::effects, size(), channels_, {});
    return Outcome::success();
  }

  // The last operation: the size is the result's.
  Outcome operator()(const RandomErasing& op) {
    if (given_ != nullptr) {
      if (!inside(given().box)) return Outcome::to_python(kImpossible);
      drawn().box = given().box;
      return Outcome::success();
    }
    TorchGenerator generator(draws_.next().word());
    drawn().box = op.draw(generator, size().height, size().width).value_or(Box{});
    return Outcome::success();
  }

  Outcome operator()(const Grayscale& op) {
    if (channels_ == 1 && op.channels == 1) return Outcome::success();
    channels_ = op.channels;
    scratch_.close_segment(Segment::End::grayscale, size(), channels_, {});
    return Outcome::success();
  }

 private:
  [[nodiscard]] Extent size() const { return {scratch_.current().y.size(), scratch_.current().x.size()}; }
  [[nodiscard]] Drawn& drawn() { return scratch_.drawn_[index_]; }
  [[nodiscard]] const Drawn& given() const { return (*given_)[index_]; }
  [[nodiscard]] bool inside(Box box) const {
    return box.x0 >= 0 && box.y0 >= 0 && box.x1 <= size().width && box.y1 <= size().height;
  }

  void crop(Box box) {
    scratch_.current().x.crop(box.x0, box.x1 - box.x0);
    scratch_.current().y.crop(box.y0, box.y1 - box.y0);
  }

  [[nodiscard]] bool pad(Margins by, PadMode mode, int fill) {
    scratch_.padded_ |= by.left > 0 || by.top > 0 || by.right > 0 || by.bottom > 0;
    return scratch_.current().x.pad(by.left, by.right, mode, fill) && scratch_.current().y.pad(by.top, by.bottom, mode, fill);
  }

  Outcome resize(Extent to, Sampling sampling) {
    if (to == size()) return Outcome::success();
    scratch_.close_segment(Segment::End::resize, to, channels_, sampling);
    return Outcome::success();
  }

  // center_crop along one axis: pads to the size when too small, else cuts.
  [[nodiscard]] static bool centre(AxisMap& axis, int to, int fill) {
    const int lacking = to - axis.size();
    if (lacking > 0) return axis.pad(lacking / 2, (lacking + 1) / 2, PadMode::constant, fill);
    axis.crop(round_half_even(-lacking / 2.0), to);
    return true;
  }

  const Recipe& recipe_;
  RecipeScratch& scratch_;
  SampleDraws draws_;
  const std::vector<Drawn>* const given_ = nullptr;  // in place of draws
  std::size_t index_ = 0;
  int channels_ = 3;
};

Outcome RecipeScratch::plan(const Recipe& recipe, SampleDraws draws, Extent source) {
  if (!in_range(source)) return Outcome::to_python("an image of no pixels, or of too many");
  return Planner(recipe, *this, draws).plan(source);
}

Outcome RecipeScratch::plan(const Recipe& recipe, const std::vector<Drawn>& given, Extent source) {
  if (!in_range(source)) return Outcome::to_python("an image of no pixels, or of too many");
  if (given.size() != recipe.operations.size()) return Outcome::to_python(kImpossible);
  return Planner(recipe, *this, given).plan(source);
}

void RecipeScratch::open_segment(Extent size, int channels) {
  if (used_ == segments_.size()) segments_.emplace_back();
  Segment& segment = segments_[used_++];
  segment.x.reset(size.width);
  segment.y.reset(size.height);
  segment.end = Segment::End::output;
  segment.channels = channels;
}

void RecipeScratch::close_segment(Segment::End end, Extent size, int channels, Sampling sampling) {
  Segment& segment = current();
  segment.end = end;
  segment.size = size;
  segment.channels = channels;
  segment.sampling = sampling;
  open_segment(size, channels);
}

// From the last segment to the first: which box of each picture is seen. False: a resize is not supported.
bool RecipeScratch::look_back() {
  for (std::size_t i = used_; i-- > 0;) {
    Segment& segment = segments_[i];
    segment.window = i + 1 < used_ ? segments_[i + 1].need : Box{0, 0, segment.size.width, segment.size.height};
    // An effect takes, and gives, the whole picture.
    if (segment.end == Segment::End::effects) segment.window = {0, 0, segment.size.width, segment.size.height};
    segment.mapped = segment.window;
    if (segment.end == Segment::End::resize) {
      const Sampling& how = segment.sampling;
      segment.mapped = Resizer::needed(segment.x.size(), segment.y.size(), segment.size.width, segment.size.height,
                                       how.filter, how.arithmetic, how.antialias, segment.window);
    }
    const Box& box = segment.mapped;
    if (box.x0 >= box.x1 || box.y0 >= box.y1) return false;
    const Span across = segment.x.sources(box.x0, box.x1), down = segment.y.sources(box.y0, box.y1);
    // Where nothing but fill is seen, one pixel keeps the picture from being empty.
    segment.need = across.empty() || down.empty() ? Box{0, 0, 1, 1} : Box{across.from, down.from, across.to, down.to};
  }
  return true;
}

// The size after an operation; zeros when it depends on a size that is not known, or when torchvision would raise.
static Extent size_after(const Operation& operation, Extent size) {
  const bool known = size.height > 0;
  if (const auto* crop = std::get_if<RandomResizedCrop>(&operation)) return crop->size;
  if (const auto* crop = std::get_if<CenterCrop>(&operation)) return crop->size;
  if (const auto* crop = std::get_if<RandomCrop>(&operation)) return crop->size;
  if (const auto* op = std::get_if<Resize>(&operation)) {
    if (known || op->size.height > 0) size = resized(*op, size);
  } else if (const auto* pad = std::get_if<Pad>(&operation); pad != nullptr && known) {
    size.height += pad->padding.top + pad->padding.bottom;
    size.width += pad->padding.left + pad->padding.right;
  }
  return in_range(size) ? size : Extent{};
}

Extent result_size(const Recipe& recipe, Extent source) {
  for (const Operation& operation : recipe.operations) source = size_after(operation, source);
  return source;
}

std::vector<Extent> sizes(const Recipe& recipe, Extent source) {
  std::vector<Extent> all{source};
  for (const Operation& operation : recipe.operations) {
    if (all.back().height <= 0) return {};
    all.push_back(size_after(operation, all.back()));
  }
  return all.back().height > 0 ? all : std::vector<Extent>{};
}

}  // namespace penstock
