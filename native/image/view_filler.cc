#include "image/view_filler.h"

#include <algorithm>

namespace penstock {
namespace {

// The pixels of the image that a thread has decoded last, for the views that are filled next.
struct SharedPixels final : ScratchPart {
  explicit SharedPixels(StageClock&) {}
  [[nodiscard]] std::size_t held() const noexcept override { return 0; }  // they are the decoder's
  void release() noexcept override { of = nullptr; }

  [[nodiscard]] bool belong_to(const Views* views, const SampleKey& key, std::size_t view) const {
    return of == views && next == view && sample.local == key.local && sample.position == key.position &&
           sample.place == key.place && sample.epoch == key.epoch;
  }

  const Views* of = nullptr;  // null: there are none
  std::size_t next = 0;       // the view that may take them
  SampleKey sample{};
  ImagePart part{};
};

Box united(Box a, Box b) {
  return {std::min(a.x0, b.x0), std::min(a.y0, b.y0), std::max(a.x1, b.x1), std::max(a.y1, b.y1)};
}

}  // namespace

SampleDraws ViewFiller::draws(const SampleKey& key) const noexcept {
  SampleDraws own = key.draws();
  own.set_count(views_->first[number_]);
  return own;
}

Box ViewFiller::seen(const SampleKey& key, Extent size, RecipeScratch& scratch) const {
  const Box whole{0, 0, size.width, size.height};
  std::optional<Box> all;
  for (std::size_t view = number_; view < views_->recipes.size(); ++view) {
    SampleDraws own = key.draws();
    own.set_count(views_->first[view]);
    if (!scratch.plan(*views_->recipes[view], own, size).ok()) return whole;
    const Box need = scratch.need();
    all = all ? united(*all, need) : need;
  }
  return all.value_or(whole);
}

Outcome ViewFiller::fill(const SampleKey& key, const FileTable* paths, const TensorSpec& want, std::uint8_t* row,
                         TensorSpec& got, Scratch& all) const noexcept {
  return without_throwing([&] {
    auto& scratch = all.part<ImageScratch>();
    auto& shared = all.part<SharedPixels>();
    const bool known = number_ > 0 && shared.belong_to(views_.get(), key, number_);
    shared.of = nullptr;
    if (!known) {
      EncodedImage encoded;
      const Outcome opened = open_image(where(key, paths), max_pixels_, encoded, all, scratch);
      if (!opened.ok()) return opened;
      JpegSource source(scratch.jpeg, scratch.clock);
      const Box need = seen(key, {source.height(), source.width()}, scratch.recipe);
      if (const Outcome decoded = source.pixels(need, shared.part); !decoded.ok()) return decoded;
    }
    MemorySource part(shared.part);
    const Outcome outcome = run(*views_->recipes[number_], part, draws(key), want, row, got, scratch.recipe);
    if (outcome.ok()) scratch.clock.lap(Stage::convert);
    shared.of = views_.get();
    shared.next = number_ + 1;
    shared.sample = key;
    return outcome;
  });
}

Outcome ViewFiller::fill_from_pixels(const SampleKey& key, const DecodedImage& image, const TensorSpec& want,
                                     std::uint8_t* row, TensorSpec& got, Scratch& all) const noexcept {
  return without_throwing([&] {
    auto& scratch = all.part<ImageScratch>();
    MemorySource source(image.data, image.height, image.width, image.channels);
    const Outcome outcome = run(*views_->recipes[number_], source, draws(key), want, row, got, scratch.recipe);
    if (outcome.ok()) scratch.clock.lap(Stage::convert);
    return outcome;
  });
}

}  // namespace penstock
