// Fillers of the views of encoded images: fields of one sample that are made of one decoded image.
//
// Threads: as every Filler's (filler.h); the fields of a sample are filled by one thread, one after the other. Memory: as
// ImageFileFiller's; the pixels that views share are those of the thread's decoder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "image/image_filler.h"

namespace penstock {

// What is done to an image for each of its views, in the order of the fields.
struct Views {
  std::vector<std::shared_ptr<const Recipe>> recipes;
  std::vector<std::uint32_t> first;  // how many operations of the views before each one draw
};

class ViewFiller final : public Filler {
 public:
  // `number`: of the view, below that of the recipes.
  ViewFiller(std::shared_ptr<const FileTable> table, std::shared_ptr<const Views> views, std::size_t number,
             std::uint64_t max_pixels, std::shared_ptr<const SampleCache> cache = nullptr)
      : table_(std::move(table)), views_(std::move(views)), number_(number), max_pixels_(max_pixels), cache_(std::move(cache)) {}

  Outcome fill(const SampleKey&, const FileTable*, const TensorSpec&, std::uint8_t*, TensorSpec&,
               Scratch&) const noexcept override;
  Outcome fill_from_pixels(const SampleKey&, const DecodedImage&, const TensorSpec&, std::uint8_t*, TensorSpec&,
                           Scratch&) const noexcept override;
  // The first view's: the others are made of the same file.
  [[nodiscard]] FileLocation locate(const SampleKey& key, const FileTable* paths) const noexcept override {
    return number_ == 0 ? where(key, paths) : FileLocation{};
  }
  [[nodiscard]] std::shared_ptr<Filler> cached(std::shared_ptr<const SampleCache> cache) const override {
    return std::make_shared<ViewFiller>(table_, views_, number_, max_pixels_, std::move(cache));
  }

 private:
  [[nodiscard]] FileLocation where(const SampleKey& key, const FileTable* paths) const noexcept {
    return {table_ ? table_.get() : paths, table_ ? key.local : key.place, cache_.get(), key.local};
  }
  [[nodiscard]] SampleDraws draws(const SampleKey& key) const noexcept;
  // The part of the image that this view and those behind it see; none where it has to be found out by each. Lays out all
  // of them.
  [[nodiscard]] Box seen(const SampleKey& key, Extent size, RecipeScratch& scratch) const;

  const std::shared_ptr<const FileTable> table_;
  const std::shared_ptr<const Views> views_;
  const std::size_t number_;
  const std::uint64_t max_pixels_;
  const std::shared_ptr<const SampleCache> cache_;
};

}  // namespace penstock
