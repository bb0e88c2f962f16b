// Recipes: what is done to an image's bytes between the decoder and the batch row.
//
// A recipe is a list of geometric operations on an 8-bit picture and one output step. Crops, flips and pads
// cost nothing by themselves: they are folded into one map an axis, resizes compute only the window that is
// seen later, and the source is asked only for the box that all of it depends on.
//
// Threads: a Recipe is immutable once built and shared by all threads; a RecipeScratch belongs to one thread.
// Memory: a Recipe is held by shared_ptr (never by Python's object itself, so that the last worker may drop it
// without Python's lock); a RecipeScratch keeps its buffers from sample to sample.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "files/outcome.h"
#include "files/stages.h"
#include "image/augmentation.h"
#include "image/axis_map.h"
#include "image/convert.h"
#include "image/erase.h"
#include "image/resize.h"
#include "order/random.h"
#include "tensor/dtype.h"

namespace penstock {

struct Extent {
  int height = 0, width = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

struct Margins {
  int left = 0, top = 0, right = 0, bottom = 0;
};

struct Sampling {
  Filter filter = Filter::bilinear;
  Arithmetic arithmetic = Arithmetic::pillow;
  bool antialias = true;
};

// The operations, with the meaning that torchvision.transforms gives the class of the same name.

struct RandomResizedCrop {
  Extent size;
  std::array<double, 2> scale{0.08, 1.0}, ratio{3.0 / 4.0, 4.0 / 3.0};
  Sampling sampling;
};

struct Resize {
  Extent size;         // used when both are positive
  int shorter = 0;     // else the shorter edge, when positive
  int longest = 0;     // else, or as its limit: the longer edge, when positive
  Sampling sampling;
};

struct CenterCrop {
  Extent size;
  int fill = 0;  // index into Output::fills
};

struct RandomCrop {
  Extent size;
  Margins padding;
  PadMode mode = PadMode::constant;
  int fill = 0;
  bool pad_if_needed = false;
  bool pad_once = false;  // all padding in one step (transforms.v2), which matters to reflections
};

struct RandomFlip {
  bool horizontal = true;
  double p = 0.5;
};

struct Pad {
  Margins padding;
  PadMode mode = PadMode::constant;
  int fill = 0;
};

// Pillow's conversion to L, repeated to `channels` (1 or 3).
struct Grayscale {
  int channels = 1;
};

// Effects on colours and places, drawn for each sample.
struct Augment {
  AugmentationPtr augmentation;
};

using Operation = std::variant<RandomResizedCrop, Resize, CenterCrop, RandomCrop, RandomFlip, Pad, Grayscale, Augment,
                               RandomErasing>;

struct Recipe : std::enable_shared_from_this<Recipe> {
  int channels = 3;  // of the source: 3 (RGB) or 1 (L)
  std::vector<Operation> operations;
  Output output;
};

// What was drawn for one operation of one sample. `box` is of the crop, in the padded picture, or of the erasing: an
// empty one erases nothing.
struct Drawn {
  bool flip = false;
  std::optional<Filter> filter;  // of a resize, in place of the recipe's
  Margins padding;
  Box box{};
  Effects effects;
};

// Where a sample's pixels come from.
class PixelSource {
 public:
  // The image, and how pixels() gives it.
  struct Form {
    int width, height, channels;
    std::ptrdiff_t plane_stride = 0;  // bytes from one channel to the next where they lie apart; 0: interleaved
    bool spaced = false;              // an unused byte follows the channels of each pixel
  };

  explicit PixelSource(const Form& form) noexcept : form_(form) {}
  PixelSource(const PixelSource&) = delete;
  PixelSource& operator=(const PixelSource&) = delete;

  [[nodiscard]] int width() const noexcept { return form_.width; }
  [[nodiscard]] int height() const noexcept { return form_.height; }
  [[nodiscard]] int channels() const noexcept { return form_.channels; }
  [[nodiscard]] std::ptrdiff_t plane_stride() const noexcept { return form_.plane_stride; }
  [[nodiscard]] bool spaced() const noexcept { return form_.spaced; }
  // Gives a part that covers `need` (inside the image, not empty), of planes the first one's; its bytes stay until the
  // source is destroyed.
  [[nodiscard]] virtual Outcome pixels(Box need, ImagePart& part) noexcept = 0;

 protected:
  ~PixelSource() = default;

 private:
  const Form form_;
};

// An image in memory; borrows it.
class MemorySource final : public PixelSource {
 public:
  // A part of an image, interleaved.
  explicit MemorySource(const ImagePart& part) noexcept
      : PixelSource({part.full_width, part.full_height, part.channels}), part_(part) {}
  // height x width x channels bytes.
  MemorySource(const std::uint8_t* data, int height, int width, int channels) noexcept
      : MemorySource({width, height, channels}, data, std::ptrdiff_t{width} * channels, channels) {}
  // channels x height x width bytes, of more than one channel.
  static MemorySource planar(const std::uint8_t* data, int height, int width, int channels) noexcept {
    return {{width, height, channels, std::ptrdiff_t{width} * height}, data, width, 1};
  }
  // The pixels of a Pillow image of mode RGB: four bytes each, the last one unused (its docs: "Block allocator", "Arrow
  // support").
  static MemorySource spaced_rgb(const std::uint8_t* data, int height, int width) noexcept {
    return {{width, height, 3, 0, true}, data, std::ptrdiff_t{width} * kSpacing, 3};
  }
  static constexpr int kSpacing = 4;

  [[nodiscard]] Outcome pixels(Box, ImagePart& part) noexcept override {
    part = part_;
    return Outcome::success();
  }

 private:
  MemorySource(const Form& form, const std::uint8_t* data, std::ptrdiff_t row_stride, int channels) noexcept
      : PixelSource(form),
        part_{data, row_stride, 0, 0, form.width, form.height, form.width, form.height, channels} {}

  const ImagePart part_;
};

// A stretch of a recipe: maps on a picture, and what ends them.
struct Segment {
  enum class End : std::uint8_t { output, resize, grayscale, effects };

  AxisMap x, y;
  End end = End::output;
  Extent size;        // of the result
  int channels = 3;   // of the result
  Sampling sampling;  // of a resize
  std::size_t operation = 0;  // whose effects they are
  Box window{};       // which part of the result is seen later
  Box mapped{};       // which part of the mapped picture that takes
  Box need{};         // which part of the picture that takes
};

// Working memory of one thread.
class RecipeScratch {
 public:
  // `clock`: of the thread, or null; it outlives the object. execute() counts its resizes there.
  explicit RecipeScratch(StageClock* clock = nullptr) noexcept : clock_(clock) {}

  // Draws sample's parameters and lays out its segments for a source of this size. Code::python when
  // torchvision raises, or may.
  [[nodiscard]] Outcome plan(const Recipe& recipe, SampleDraws draws, Extent source);
  // The same with parameters that the caller has drawn, one for each operation: the flips, and the boxes of
  // RandomResizedCrop and RandomCrop. Those that torchvision cannot have drawn are refused.
  [[nodiscard]] Outcome plan(const Recipe& recipe, const std::vector<Drawn>& given, Extent source);

  [[nodiscard]] const std::vector<Drawn>& drawn() const { return drawn_; }
  // Whether a step of the planned sample gives a PIL image without the info of the picture: a crop or a pad that adds
  // pixels around it, or an effect.
  [[nodiscard]] bool padded() const { return padded_; }
  // Bytes that the buffers hold.
  [[nodiscard]] std::size_t held() const {
    return buffers_[0].capacity() + buffers_[1].capacity() + resizer_.held();
  }
  // Gives the buffers back. What was planned stays.
  void release() noexcept;
  // The segment of a planned sample that has no other; null where there are several.
  [[nodiscard]] const Segment* only() const { return used_ == 1 ? segments_.data() : nullptr; }
  // The part of the source that the planned sample takes.
  [[nodiscard]] Box need() const { return segments_[0].need; }
  // Height and width of the planned result.
  [[nodiscard]] Extent result() const { return segments_[used_ - 1].size; }

  // Fills `row` from the source that was planned for.
  [[nodiscard]] Outcome execute(const Recipe& recipe, PixelSource& source, std::uint8_t* row);

 private:
  friend class Planner;

  Segment& current() { return segments_[used_ - 1]; }
  void open_segment(Extent size, int channels);
  void close_segment(Segment::End end, Extent size, int channels, Sampling sampling);
  [[nodiscard]] bool look_back();
  [[nodiscard]] std::uint8_t* buffer(Box box, int channels);
  [[nodiscard]] bool advance(const Recipe& recipe, const Segment& segment, ImagePart& part);
  void apply_effects(const Effects& effects, ImagePart& part);
  void erase_drawn(const Recipe& recipe, std::uint8_t* row) const;

  StageClock* clock_;
  std::vector<Segment> segments_;
  std::size_t used_ = 0;
  bool padded_ = false;
  std::vector<Drawn> drawn_;
  std::array<std::vector<std::uint8_t>, 2> buffers_;
  unsigned turn_ = 0;
  Indices indices_;
  Resizer resizer_;
};

// A recipe cut in two: `rest` gives of what `first` makes of a picture what the whole gives of the picture.
struct SplitRecipe {
  std::shared_ptr<const Recipe> first;  // gives 8-bit pixels, interleaved
  std::shared_ptr<const Recipe> rest;
};

// Cuts a recipe behind its first `count` operations, of which each fill is a colour of pixels. Throws
// std::invalid_argument where it has fewer, or where one of them draws: the draws of the others would not be theirs.
[[nodiscard]] SplitRecipe split(const Recipe& recipe, std::size_t count);

// How many operations draw.
[[nodiscard]] std::uint32_t drawing_operations(const Recipe& recipe);

// The spec of a result of this size: (channels, height, width).
[[nodiscard]] TensorSpec spec_of(const Recipe& recipe, Extent size);

// The size of the result for sources of this size; of every result when `source` is zeros. Zeros when it
// depends on what is not known, or when torchvision would raise.
[[nodiscard]] Extent result_size(const Recipe& recipe, Extent source = {});

// The size of the picture before each operation, and of the result, for sources of this size: they do not depend on
// what is drawn. Empty when torchvision would raise.
[[nodiscard]] std::vector<Extent> sizes(const Recipe& recipe, Extent source);

// RandomResizedCrop.get_params; an empty box when torchvision's own crop would be empty. 0 <= scale[0] <= scale[1] and
// 0 < ratio[0] <= ratio[1].
[[nodiscard]] Box draw_resized_crop(const std::array<double, 2>& scale, const std::array<double, 2>& ratio, Draws draws,
                                    Extent from);

// RandomCrop.get_params for a padded picture that is not smaller than the crop.
[[nodiscard]] Box draw_crop(Extent size, Draws draws, Extent padded);

// Lays out one sample in `scratch`, of which execute() then fills the row. When the result would be another than `want`,
// `got` is set and the outcome is a mismatch.
[[nodiscard]] Outcome lay_out(const Recipe& recipe, const PixelSource& source, SampleDraws draws, const TensorSpec& want,
                              TensorSpec& got, RecipeScratch& scratch) noexcept;

// RecipeScratch::execute, with what it throws as an outcome.
[[nodiscard]] Outcome execute(const Recipe& recipe, PixelSource& source, std::uint8_t* row,
                              RecipeScratch& scratch) noexcept;

// Runs the recipe on one sample. `row` has room for checked_bytes(want); when the result would be another,
// nothing is decoded, `got` is set and the outcome is a mismatch.
[[nodiscard]] Outcome run(const Recipe& recipe, PixelSource& source, SampleDraws draws, const TensorSpec& want,
                          std::uint8_t* row, TensorSpec& got, RecipeScratch& scratch) noexcept;

// The same with parameters that the caller has drawn. `row` has room for `room` bytes, which must be the result's.
[[nodiscard]] Outcome run(const Recipe& recipe, PixelSource& source, const std::vector<Drawn>& given, std::size_t room,
                          std::uint8_t* row, RecipeScratch& scratch) noexcept;

}  // namespace penstock
