#include "image/recipe.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>

namespace penstock {
namespace {

bool covers(const ImagePart& part, Box need, int channels) {
  return part.channels == channels && need.x0 >= part.x0 && need.y0 >= part.y0 && need.x1 - part.x0 <= part.width &&
         need.y1 - part.y0 <= part.height;
}

bool draws(const Operation& operation) {
  return std::holds_alternative<RandomResizedCrop>(operation) || std::holds_alternative<RandomCrop>(operation) ||
         std::holds_alternative<RandomFlip>(operation) || std::holds_alternative<Augment>(operation) ||
         std::holds_alternative<RandomErasing>(operation);
}

// The rectangle `box` of a picture of size `of`, its pixels at data.
ImagePart part_at(const std::uint8_t* data, std::ptrdiff_t row_stride, Box box, Extent of, int channels) {
  return {data, row_stride, box.x0, box.y0, box.x1 - box.x0, box.y1 - box.y0, of.width, of.height, channels};
}

}  // namespace

// The buffer that does not hold the current picture, with room for `box`.
std::uint8_t* RecipeScratch::buffer(Box box, int channels) {
  turn_ ^= 1u;
  std::vector<std::uint8_t>& bytes = buffers_[turn_];
  const std::size_t size = static_cast<std::size_t>(box.x1 - box.x0) * static_cast<std::size_t>(box.y1 - box.y0) *
                           static_cast<std::size_t>(channels);
  if (bytes.size() < size) bytes.resize(size);
  return bytes.data();
}

void RecipeScratch::release() noexcept {
  for (std::vector<std::uint8_t>& bytes : buffers_) std::vector<std::uint8_t>().swap(bytes);
  resizer_.release();
}

// Replaces `part` by the window of the segment's result. False: the resize was refused.
bool RecipeScratch::advance(const Recipe& recipe, const Segment& segment, ImagePart& part) {
  const Box mapped = segment.mapped;
  const Extent mapped_size{segment.y.size(), segment.x.size()};
  if (segment.x.plain(mapped.x0, mapped.x1) && segment.y.plain(mapped.y0, mapped.y1)) {
    const std::uint8_t* const data = part.data + part.row_stride * (segment.y.at(mapped.y0) - part.y0) +
                                     std::ptrdiff_t{part.channels} * (segment.x.at(mapped.x0) - part.x0);
    part = part_at(data, part.row_stride, mapped, mapped_size, part.channels);
  } else {
    std::uint8_t* const copy = buffer(mapped, part.channels);
    const std::ptrdiff_t stride = std::ptrdiff_t{mapped.x1 - mapped.x0} * part.channels;
    materialise(recipe.output.fills, part, segment.x, segment.y, mapped, copy, stride);
    part = part_at(copy, stride, mapped, mapped_size, part.channels);
  }
  if (segment.end == Segment::End::effects) {
    apply_effects(drawn_[segment.operation].effects, part);
    return true;
  }
  std::uint8_t* const result = buffer(segment.window, segment.channels);
  const std::ptrdiff_t stride = std::ptrdiff_t{segment.window.x1 - segment.window.x0} * segment.channels;
  if (segment.end == Segment::End::grayscale) {
    to_grayscale(part, segment.window, segment.channels, result, stride);
  } else {
    const Sampling& how = segment.sampling;
    if (!resizer_.resize(part, segment.size.width, segment.size.height, how.filter, how.arithmetic, how.antialias,
                         segment.window, result, stride))
      return false;
  }
  part = part_at(result, stride, segment.window, segment.size, segment.channels);
  return true;
}

// Replaces `part`, a whole picture, by what the effects make of it.
void RecipeScratch::apply_effects(const Effects& effects, ImagePart& part) {
  const Box whole{0, 0, part.width, part.height};
  const std::ptrdiff_t stride = std::ptrdiff_t{part.width} * part.channels;
  for (const Effect& effect : effects) {
    std::uint8_t* const result = buffer(whole, part.channels);
    apply_effect(effect, part, result, stride);
    part = part_at(result, stride, whole, {part.height, part.width}, part.channels);
  }
}

void RecipeScratch::erase_drawn(const Recipe& recipe, std::uint8_t* row) const {
  for (std::size_t i = 0; i < recipe.operations.size(); ++i) {
    const auto* const erasing = std::get_if<RandomErasing>(&recipe.operations[i]);
    if (erasing != nullptr && drawn_[i].box.width() > 0)
      erase(recipe.output, erasing->fill, drawn_[i].box, result().height, result().width, row);
  }
}

Outcome RecipeScratch::execute(const Recipe& recipe, PixelSource& source, std::uint8_t* row) {
  ImagePart part{};
  const Box need = segments_[0].need;
  const Outcome decoded = source.pixels(need, part);
  if (!decoded.ok()) return decoded;
  const std::ptrdiff_t plane_stride = source.plane_stride();
  if (!covers(part, need, plane_stride != 0 ? 1 : recipe.channels))
    return Outcome::to_python("the decoder gave another part of the image");
  if (source.spaced()) {
    std::uint8_t* const copy = buffer(need, recipe.channels);
    const std::ptrdiff_t stride = std::ptrdiff_t{need.x1 - need.x0} * recipe.channels;
    close_up(part, MemorySource::kSpacing, need, copy, stride);
    part = part_at(copy, stride, need, {part.full_height, part.full_width}, recipe.channels);
  }
  if (plane_stride != 0) {
    if (used_ == 1 && recipe.output.layout == Layout::chw) {
      write_planes(recipe.output, part, plane_stride, current().x, current().y, row, indices_);
      erase_drawn(recipe, row);
      return Outcome::success();
    }
    std::uint8_t* const copy = buffer(need, recipe.channels);
    const std::ptrdiff_t stride = std::ptrdiff_t{need.x1 - need.x0} * recipe.channels;
    interleave(part, plane_stride, recipe.channels, need, copy, stride);
    part = part_at(copy, stride, need, {part.full_height, part.full_width}, recipe.channels);
  }
  for (std::size_t i = 0; i + 1 < used_; ++i)
    if (!advance(recipe, segments_[i], part)) return Outcome::to_python("a resize that native code does not reproduce");
  if (used_ > 1 && clock_ != nullptr) clock_->lap(Stage::resize);
  if (part.channels != recipe.output.channels) return Outcome::to_python("the image has another number of channels");
  write_output(recipe.output, part, current().x, current().y, row, indices_);
  erase_drawn(recipe, row);
  return Outcome::success();
}

SplitRecipe split(const Recipe& recipe, std::size_t count) {
  if (count > recipe.operations.size()) throw std::invalid_argument("the recipe has fewer operations");
  auto first = std::make_shared<Recipe>();
  auto rest = std::make_shared<Recipe>();
  first->channels = first->output.channels = recipe.channels;
  for (std::size_t i = 0; i < count; ++i) {
    const Operation& operation = recipe.operations[i];
    if (draws(operation)) throw std::invalid_argument("an operation that draws cannot be done before the others");
    if (const auto* grey = std::get_if<Grayscale>(&operation)) first->output.channels = grey->channels;
    first->operations.push_back(operation);
  }
  first->output.layout = Layout::hwc;
  for (const Fill& fill : recipe.output.fills) {
    first->output.fills.push_back(fill);
    std::copy(fill.pixel.begin(), fill.pixel.end(), first->output.fills.back().element.begin());
  }
  rest->channels = first->output.channels;
  rest->operations.assign(recipe.operations.begin() + static_cast<std::ptrdiff_t>(count), recipe.operations.end());
  rest->output = recipe.output;
  return {std::move(first), std::move(rest)};
}

std::uint32_t drawing_operations(const Recipe& recipe) {
  return static_cast<std::uint32_t>(std::count_if(recipe.operations.begin(), recipe.operations.end(), draws));
}

TensorSpec spec_of(const Recipe& recipe, Extent size) {
  TensorSpec spec;
  spec.dtype = recipe.output.dtype;
  spec.ndim = 3;
  spec.shape = {recipe.output.channels, size.height, size.width};
  return spec;
}

Outcome lay_out(const Recipe& recipe, const PixelSource& source, SampleDraws draws, const TensorSpec& want,
                TensorSpec& got, RecipeScratch& scratch) noexcept {
  return without_throwing([&] {
    if (source.channels() != recipe.channels) return Outcome::to_python("the image has another number of channels");
    const Outcome planned = scratch.plan(recipe, draws, {source.height(), source.width()});
    if (!planned.ok()) return planned;
    got = spec_of(recipe, scratch.result());
    if (!(got == want)) return Outcome::mismatch("the image's shape or dtype is not the batch's");
    return planned;
  });
}

Outcome execute(const Recipe& recipe, PixelSource& source, std::uint8_t* row, RecipeScratch& scratch) noexcept {
  return without_throwing([&] {
    return scratch.execute(recipe, source, row);
  });
}

Outcome run(const Recipe& recipe, PixelSource& source, SampleDraws draws, const TensorSpec& want, std::uint8_t* row,
            TensorSpec& got, RecipeScratch& scratch) noexcept {
  const Outcome laid_out = lay_out(recipe, source, draws, want, got, scratch);
  return laid_out.ok() ? execute(recipe, source, row, scratch) : laid_out;
}

Outcome run(const Recipe& recipe, PixelSource& source, const std::vector<Drawn>& given, std::size_t room,
            std::uint8_t* row, RecipeScratch& scratch) noexcept {
  return without_throwing([&] {
    const Outcome planned = scratch.plan(recipe, given, {source.height(), source.width()});
    if (!planned.ok()) return planned;
    std::int64_t bytes = 0;
    if (!checked_bytes(spec_of(recipe, scratch.result()), bytes) || static_cast<std::size_t>(bytes) != room)
      return Outcome::to_python("the result has another size");
    return scratch.execute(recipe, source, row);
  });
}

}  // namespace penstock
