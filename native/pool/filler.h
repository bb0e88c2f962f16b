// Fillers: how one sample becomes one row of a batch.
//
// Threads: a Filler is immutable once built; any number of worker threads call fill() at once, each with
// its own Scratch. Memory: a Filler borrows arrays (their owner outlives the pool, see pool.h) and shares
// path tables and recipes; the row belongs to the batch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensor/dtype.h"
#include "pool/guarded.h"
#include "image/jpeg.h"
#include "files/outcome.h"
#include "files/path_table.h"
#include "image/recipe.h"
#include "tensor/tensor_file.h"

namespace penstock {

// What one sample is known by: where it lies in its source, and what its random draws depend on.
struct SampleKey {
  std::size_t local;       // index into the source
  std::uint64_t sample;    // index into the dataset that the loader was given
  std::uint64_t position;  // in the order of the epoch, of all ranks
  PhiloxKey epoch;         // epoch_key(seed, epoch)
  std::size_t place = 0;   // index into the batch's own paths, for sources without a table of theirs

  [[nodiscard]] SampleDraws draws() const { return {epoch, sample, position}; }
};

// Working memory of one worker thread, reused from sample to sample.
struct Scratch {
  TensorReader tensors;
  JpegDecoder jpeg;
  RecipeScratch recipe;
  std::vector<std::uint8_t> file;  // the encoded image
  std::vector<std::uint8_t> image;  // a copy of one in memory
  Guard guard;

  // Gives back the memory for an image where it is over kKeptBytes, so that one huge image does not cost its memory
  // for the rest of the pass. To be called when no sample is in work. (`tensors` does the same by itself.)
  void trim() noexcept;
  // Bytes that the memory for an image takes.
  [[nodiscard]] std::size_t held() const noexcept { return file.capacity() + jpeg.held() + recipe.held(); }

  static constexpr std::size_t kKeptBytes = std::size_t{64} << 20;
};

// An image that was read by itself, whatever its size.
struct Picture {
  std::unique_ptr<std::uint8_t[]> pixels;  // as the recipe lays them out
  TensorSpec spec;                         // (channels, height, width)
  std::string head;                        // the file's bytes before its entropy-coded data
  bool padded = false;                     // the recipe added pixels around it
};

class Filler {
 public:
  Filler() = default;
  Filler(const Filler&) = delete;
  Filler& operator=(const Filler&) = delete;
  virtual ~Filler() = default;

  // Writes sample `key` into `row`, which holds checked_bytes(want). On Code::mismatch `got` is what the
  // sample would need; the row's content is then undefined, as after every outcome but ok.
  // `paths` is the batch's own table of names, or null. Where memory_bytes() is not 0 the call is one of each_guarded.
  virtual Outcome fill(const SampleKey& key, const PathTable* paths, const TensorSpec& want, std::uint8_t* row,
                       TensorSpec& got, Scratch& scratch) const noexcept = 0;

  // The processor may fetch what fill() will read next; a hint without effect on results.
  virtual void prefetch(std::size_t local) const noexcept { (void)local; }

  // Bytes that a row of this filler moves, when the samples lie in memory; 0 for files.
  [[nodiscard]] virtual std::size_t memory_bytes() const noexcept { return 0; }
};

// Rows of an array: count rows of row_bytes, row_stride apart.
class GatherFiller final : public Filler {
 public:
  GatherFiller(const std::uint8_t* base, std::size_t count, std::ptrdiff_t row_stride, TensorSpec spec);
  Outcome fill(const SampleKey&, const PathTable*, const TensorSpec&, std::uint8_t*, TensorSpec&,
               Scratch&) const noexcept override;
  void prefetch(std::size_t local) const noexcept override;
  [[nodiscard]] std::size_t memory_bytes() const noexcept override { return row_bytes_; }

 private:
  const std::uint8_t* base_;
  std::size_t count_;
  std::ptrdiff_t row_stride_;
  std::size_t row_bytes_;
  TensorSpec spec_;
};

// Tensor files by name (.pt, .npy).
class TensorFileFiller final : public Filler {
 public:
  explicit TensorFileFiller(std::shared_ptr<const PathTable> table) : table_(std::move(table)) {}
  Outcome fill(const SampleKey&, const PathTable*, const TensorSpec&, std::uint8_t*, TensorSpec&,
               Scratch&) const noexcept override;

 private:
  std::shared_ptr<const PathTable> table_;
};

// Encoded images by name; without a table of its own, names come with each batch.
class ImageFileFiller final : public Filler {
 public:
  ImageFileFiller(std::shared_ptr<const PathTable> table, std::shared_ptr<const Recipe> recipe, std::uint64_t max_pixels)
      : table_(std::move(table)), recipe_(std::move(recipe)), max_pixels_(max_pixels) {}
  Outcome fill(const SampleKey&, const PathTable*, const TensorSpec&, std::uint8_t*, TensorSpec&,
               Scratch&) const noexcept override;
  // The same recipe on an image that Python decoded.
  Outcome fill_from_pixels(const SampleKey&, const std::uint8_t* pixels, int height, int width, int channels,
                           const TensorSpec& want, std::uint8_t* row, TensorSpec& got,
                           RecipeScratch& scratch) const noexcept;
  // The same sample outside of a batch; `picture` owns its pixels.
  Outcome read(const SampleKey&, const PathTable*, Picture& picture, Scratch&) const noexcept;

 private:
  // Reads the file into scratch.file and its header into scratch.jpeg.
  Outcome open(const SampleKey&, const PathTable*, Scratch&) const;

  std::shared_ptr<const PathTable> table_;
  std::shared_ptr<const Recipe> recipe_;
  std::uint64_t max_pixels_;
};

// Decoded images in memory: count images of height x width x channels, uint8, one after the other; in each the
// channels are interleaved, or (planar) lie apart.
class ImageArrayFiller final : public Filler {
 public:
  ImageArrayFiller(const std::uint8_t* base, std::size_t count, int height, int width, int channels, bool planar,
                   std::shared_ptr<const Recipe> recipe)
      : base_(base),
        count_(count),
        height_(height),
        width_(width),
        channels_(channels),
        planar_(planar),
        recipe_(std::move(recipe)) {}
  Outcome fill(const SampleKey&, const PathTable*, const TensorSpec&, std::uint8_t*, TensorSpec&,
               Scratch&) const noexcept override;
  void prefetch(std::size_t local) const noexcept override;
  [[nodiscard]] std::size_t memory_bytes() const noexcept override;

 private:
  template <class Source>
  Outcome fill_as(const SampleKey&, const TensorSpec&, std::uint8_t*, TensorSpec&, Scratch&) const noexcept;

  const std::uint8_t* base_;
  std::size_t count_;
  int height_, width_, channels_;
  bool planar_;
  std::shared_ptr<const Recipe> recipe_;
};

}  // namespace penstock
