// Fillers of images: JPEG files, and decoded images in files and in memory.
//
// Threads: as every Filler's (filler.h). Memory: an ImageArrayFiller borrows its array; recipes and tables are shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "image/jpeg.h"
#include "image/jpeg_index.h"
#include "image/recipe.h"
#include "tensor/filler.h"

namespace penstock {

// What one thread keeps from image to image.
struct ImageScratch final : ScratchPart {
  explicit ImageScratch(StageClock& of_thread) : clock(of_thread), recipe(&of_thread) {}
  [[nodiscard]] std::size_t held() const noexcept override { return file.capacity() + copy.capacity() + jpeg.held() + recipe.held(); }
  void release() noexcept override;

  StageClock& clock;
  JpegDecoder jpeg;
  RecipeScratch recipe;
  jpeg::RowStates states;          // of the rows of an encoded image
  std::vector<std::uint8_t> file;  // the encoded image
  std::vector<std::uint8_t> copy;  // of the one that a cache is to keep
};

// Where an index knows states of a file's rows, and is told of others; none where `index` is null.
struct IndexedJpeg {
  JpegIndex* index = nullptr;
  std::size_t sample = 0;  // of the index
  std::span<const std::uint8_t> file;
  jpeg::RowStates* states = nullptr;  // working memory
};

// The open image of a decoder: no more of it is decoded than a recipe asks for, and an index knows nothing of.
class JpegSource final : public PixelSource {
 public:
  JpegSource(JpegDecoder& decoder, StageClock& clock, IndexedJpeg indexed = {})
      : PixelSource({decoder.width(), decoder.height(), 3}), decoder_(decoder), clock_(clock), indexed_(indexed) {}
  [[nodiscard]] Outcome pixels(Box need, ImagePart& part) noexcept override;

 private:
  [[nodiscard]] Outcome decode(Box need, const std::uint8_t*& data, std::ptrdiff_t& row_stride) noexcept;

  JpegDecoder& decoder_;
  StageClock& clock_;
  const IndexedJpeg indexed_;
};

// A file while its image is decoded: the bytes lie in the file's own memory, or in that of a scratch.
struct EncodedImage {
  SampleFile file;
  std::span<const std::uint8_t> bytes;
};

// Reads a sample's bytes, and the image's header into scratch.jpeg. Throws std::bad_alloc, and std::length_error.
[[nodiscard]] Outcome open_image(const FileLocation& where, std::uint64_t max_pixels, EncodedImage& encoded, Scratch& all,
                                 ImageScratch& scratch);

class PixelCacheFiller;

// The bytes of a file: where they lie in memory, else read into `bytes`, a vector that only grows. Code::python for one of
// more than 1 GiB. Throws std::bad_alloc.
[[nodiscard]] Outcome read_all(SampleFile& file, std::vector<std::uint8_t>& bytes, std::span<const std::uint8_t>& whole);

// Runs a recipe on an image that Python decoded: Filler::fill_from_pixels of a field of images.
[[nodiscard]] Outcome fill_decoded(const Recipe& recipe, const SampleKey& key, const DecodedImage& image,
                                   const TensorSpec& want, std::uint8_t* row, TensorSpec& got, Scratch& all) noexcept;

// Encoded images by name; without a table, names come with each batch.
class ImageFileFiller final : public Filler {
 public:
  ImageFileFiller(std::shared_ptr<const FileTable> table, std::shared_ptr<const Recipe> recipe, std::uint64_t max_pixels,
                  std::shared_ptr<const SampleCache> cache = nullptr, std::shared_ptr<JpegIndex> index = nullptr)
      : table_(std::move(table)),
        recipe_(std::move(recipe)),
        max_pixels_(max_pixels),
        cache_(std::move(cache)),
        index_(std::move(index)) {}
  Outcome fill(const SampleKey&, const FileTable*, const TensorSpec&, std::uint8_t*, TensorSpec&,
               Scratch&) const noexcept override;
  Outcome fill_from_pixels(const SampleKey& key, const DecodedImage& image, const TensorSpec& want, std::uint8_t* row,
                           TensorSpec& got, Scratch& scratch) const noexcept override {
    return fill_decoded(*recipe_, key, image, want, row, got, scratch);
  }
  [[nodiscard]] FileLocation locate(const SampleKey& key, const FileTable* paths) const noexcept override {
    return {table_ ? table_.get() : paths, table_ ? key.local : key.place, cache_.get(), key.local};
  }
  [[nodiscard]] std::shared_ptr<Filler> cached(std::shared_ptr<const SampleCache> cache) const override {
    return std::make_shared<ImageFileFiller>(table_, recipe_, max_pixels_, std::move(cache), index_);
  }
  // The same filler, with an index of the files' decoder states, by SampleKey::local.
  [[nodiscard]] std::shared_ptr<ImageFileFiller> indexed(std::shared_ptr<JpegIndex> index) const {
    return std::make_shared<ImageFileFiller>(table_, recipe_, max_pixels_, cache_, std::move(index));
  }
  // The same filler, of which a cache keeps the pixels that the first operations of the recipe make. Throws as split()
  // does (recipe.h).
  [[nodiscard]] std::shared_ptr<PixelCacheFiller> keeping_pixels(std::shared_ptr<const SampleCache> cache,
                                                                 std::size_t operations) const;

 private:
  [[nodiscard]] IndexedJpeg indexed_file(const SampleKey& key, const EncodedImage& encoded, ImageScratch& scratch) const {
    return {index_.get(), key.local, encoded.bytes, &scratch.states};
  }

  const std::shared_ptr<const FileTable> table_;
  const std::shared_ptr<const Recipe> recipe_;
  const std::uint64_t max_pixels_;
  const std::shared_ptr<const SampleCache> cache_;
  const std::shared_ptr<JpegIndex> index_;
};

// Decoded images in files: .npy arrays (npy_header.h) of uint8, height x width (x channels), one a file. An array of
// another dtype or layout, or of another number of channels than the recipe takes, is Code::python.
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

// How the pixels of an image lie in memory.
enum class PixelLayout {
  interleaved,  // the channels of a pixel side by side, row after row
  planar,       // channel after channel, row after row
};

// Decoded images in memory: count images of height x width x channels, uint8, one after the other.
class ImageArrayFiller final : public Filler {
 public:
  ImageArrayFiller(const std::uint8_t* base, std::size_t count, int height, int width, int channels, PixelLayout layout,
                   std::shared_ptr<const Recipe> recipe)
      : base_(base),
        count_(count),
        height_(height),
        width_(width),
        channels_(channels),
        layout_(layout),
        recipe_(std::move(recipe)) {}
  Outcome fill(const SampleKey&, const FileTable*, const TensorSpec&, std::uint8_t*, TensorSpec&,
               Scratch&) const noexcept override;
  void prefetch(std::size_t local) const noexcept override;
  [[nodiscard]] std::size_t memory_bytes() const noexcept override;
  [[nodiscard]] std::size_t staged_bytes() const noexcept override { return memory_bytes(); }
  void stage(std::size_t local, std::uint8_t* to) const noexcept override;

 private:
  const std::uint8_t* base_;
  std::size_t count_;
  int height_, width_, channels_;
  PixelLayout layout_;
  std::shared_ptr<const Recipe> recipe_;
};

}  // namespace penstock
