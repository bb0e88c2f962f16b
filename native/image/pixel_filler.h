// The filler of decoded images in files: .npy arrays of uint8, height x width (x channels), one a file.
//
// Format: npy_header.h. An array of another dtype or layout, or of another number of channels than the recipe takes, is
// Code::python.
//
// Threads: as every Filler's (filler.h). Memory: shares its table and its recipe; the bytes of a file lie in the
// thread's ImageScratch.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "image/image_filler.h"
#include "image/recipe.h"
#include "tensor/filler.h"

namespace penstock {

class PixelFileFiller final : public Filler {
 public:
  PixelFileFiller(std::shared_ptr<const FileTable> table, std::shared_ptr<const Recipe> recipe,
                  std::shared_ptr<const SampleCache> cache = nullptr)
      : table_(std::move(table)), recipe_(std::move(recipe)), cache_(std::move(cache)) {}
  Outcome fill(const SampleKey&, const FileTable*, const TensorSpec&, std::uint8_t*, TensorSpec&,
               Scratch&) const noexcept override;
  Outcome fill_from_pixels(const SampleKey& key, const DecodedImage& image, const TensorSpec& want, std::uint8_t* row,
                           TensorSpec& got, Scratch& scratch) const noexcept override {
    return fill_decoded(*recipe_, key, image, want, row, got, scratch);
  }
  [[nodiscard]] FileLocation locate(const SampleKey& key, const FileTable*) const noexcept override {
    return {table_.get(), key.local, cache_.get(), key.local};
  }
  [[nodiscard]] std::shared_ptr<Filler> cached(std::shared_ptr<const SampleCache> cache) const override {
    return std::make_shared<PixelFileFiller>(table_, recipe_, std::move(cache));
  }

 private:
  std::shared_ptr<const FileTable> table_;
  std::shared_ptr<const Recipe> recipe_;
  std::shared_ptr<const SampleCache> cache_;
};

}  // namespace penstock
