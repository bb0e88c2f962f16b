// A filler of encoded images of which a cache keeps pixels: those that the first operations of a recipe make, which draw
// nothing. What follows them is done to kept pixels as to an image that was just decoded.
//
// Threads: as every Filler's (filler.h). Memory: tables, recipes and the cache are shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "image/image_filler.h"
#include "image/recipe.h"
#include "tensor/filler.h"

namespace penstock {

class PixelCacheFiller final : public Filler {
 public:
  // `operations`: how many of the recipe's come before the pixels that are kept. Throws as split() does (recipe.h).
  PixelCacheFiller(std::shared_ptr<const FileTable> table, std::shared_ptr<const Recipe> recipe,
                   std::uint64_t max_pixels, std::shared_ptr<const SampleCache> cache, std::size_t operations)
      : files_(std::move(table), recipe, max_pixels),
        whole_(recipe),
        split_(split(*recipe, operations)),
        max_pixels_(max_pixels),
        cache_(std::move(cache)) {}

  Outcome fill(const SampleKey&, const FileTable*, const TensorSpec&, std::uint8_t*, TensorSpec&,
               Scratch&) const noexcept override;
  Outcome fill_from_pixels(const SampleKey& key, const DecodedImage& image, const TensorSpec& want, std::uint8_t* row,
                           TensorSpec& got, Scratch& scratch) const noexcept override {
    return files_.fill_from_pixels(key, image, want, row, got, scratch);
  }
  [[nodiscard]] FileLocation locate(const SampleKey& key, const FileTable* paths) const noexcept override;

  // Has the cache keep what the first operations make of an image that Python decoded from the file of this name. False
  // where they cannot be done, the image has more pixels than fill() decodes, or no tier has space.
  bool keep(std::uint64_t sample, std::string_view name, const DecodedImage& image) const noexcept;

 private:
  [[nodiscard]] bool find(const FileLocation& where, ImageScratch& scratch, DecodedImage& image) const;
  // Plans the pixels to keep in `scratch`: `image` gets their size.
  Outcome lay_out(const PixelSource& source, ImageScratch& scratch, DecodedImage& image) const;
  [[nodiscard]] bool has_space(const DecodedImage& image) const noexcept;
  // Makes what was planned, and keeps it. The pixels of `image` are in `scratch`.
  Outcome make(PixelSource& source, std::uint64_t sample, std::string_view name, ImageScratch& scratch,
               DecodedImage& image) const;

  const ImageFileFiller files_;
  const std::shared_ptr<const Recipe> whole_;
  const SplitRecipe split_;
  const std::uint64_t max_pixels_;
  const std::shared_ptr<const SampleCache> cache_;
};

}  // namespace penstock
