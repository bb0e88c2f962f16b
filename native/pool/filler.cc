#include "pool/filler.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <type_traits>

namespace penstock {
namespace {

// An encoded image larger than this is left to Pillow, which reads it piece by piece.
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;
constexpr std::size_t kFirstRead = 256 * 1024;  // one read suffices for most photos

// Reads all of a file into `bytes`; `size` is set to its length. The vector only grows.
Outcome read_all(int fd, std::vector<std::uint8_t>& bytes, std::size_t& size) {
  size = 0;
  if (bytes.empty()) bytes.resize(kFirstRead);
  while (true) {
    if (size == bytes.size()) {
      if (bytes.size() >= kMaxFileBytes) return Outcome::to_python("an encoded image of over 1 GiB");
      bytes.resize(std::min(kMaxFileBytes, bytes.size() * 2));
    }
    const ssize_t got = pread(fd, bytes.data() + size, bytes.size() - size, static_cast<off_t>(size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Outcome::io_error(errno, "pread");
    if (got == 0) return Outcome::success();
    size += static_cast<std::size_t>(got);
  }
}

// Decodes no more of a JPEG than the recipe asks for.
class JpegSource final : public PixelSource {
 public:
  explicit JpegSource(JpegDecoder& decoder) : decoder_(decoder) {}
  [[nodiscard]] int width() const noexcept override { return decoder_.width(); }
  [[nodiscard]] int height() const noexcept override { return decoder_.height(); }
  [[nodiscard]] int channels() const noexcept override { return 3; }
  [[nodiscard]] Outcome pixels(Box need, ImagePart& part) noexcept override {
    const std::uint8_t* data = nullptr;
    std::ptrdiff_t row_stride = 0;
    const Outcome outcome = decoder_.decode(need, data, row_stride);
    if (outcome.ok())
      part = {data, row_stride, need.x0, need.y0, need.x1 - need.x0, need.y1 - need.y0, width(), height(), 3};
    return outcome;
  }

 private:
  JpegDecoder& decoder_;
};

constexpr std::size_t kCacheLine = 64;
// What prefetch() touches at the most: the processor's own prefetcher goes on from there.
constexpr std::size_t kPrefetchBytes = 4096;

void prefetch_bytes(const std::uint8_t* data, std::size_t bytes) {
  for (std::size_t offset = 0; offset < std::min(bytes, kPrefetchBytes); offset += kCacheLine)
    __builtin_prefetch(data + offset);
}

}  // namespace

void Scratch::trim() noexcept {
  if (held() <= kKeptBytes) return;
  std::vector<std::uint8_t>().swap(file);
  jpeg.release();
  recipe.release();
}

GatherFiller::GatherFiller(const std::uint8_t* base, std::size_t count, std::ptrdiff_t row_stride, TensorSpec spec)
    : base_(base), count_(count), row_stride_(row_stride), row_bytes_(0), spec_(spec) {
  std::int64_t bytes = 0;
  if (checked_bytes(spec, bytes)) row_bytes_ = static_cast<std::size_t>(bytes);
}

Outcome GatherFiller::fill(const SampleKey& key, const PathTable*, const TensorSpec& want, std::uint8_t* row,
                           TensorSpec& got, Scratch& scratch) const noexcept {
  if (key.local >= count_) return Outcome::io_error(ERANGE, "index");
  if (!(want == spec_)) {
    got = spec_;
    return Outcome::mismatch("shape or dtype");
  }
  if (row_bytes_ > 0) scratch.guard.copy(row, base_ + static_cast<std::ptrdiff_t>(key.local) * row_stride_, row_bytes_);
  return Outcome::success();
}

void GatherFiller::prefetch(std::size_t local) const noexcept {
  if (local < count_) prefetch_bytes(base_ + static_cast<std::ptrdiff_t>(local) * row_stride_, row_bytes_);
}

Outcome TensorFileFiller::fill(const SampleKey& key, const PathTable*, const TensorSpec& want, std::uint8_t* row,
                               TensorSpec& got, Scratch& scratch) const noexcept {
  if (key.local >= table_->size()) return Outcome::io_error(ERANGE, "index");
  UniqueFd file;
  const Outcome opened = table_->open(key.local, file);
  if (!opened.ok()) return opened;
  return scratch.tensors.read(file.get(), table_->name(key.local).size(), want, row, got);
}

Outcome ImageFileFiller::open(const SampleKey& key, const PathTable* paths, Scratch& scratch) const {
  const PathTable* table = table_ ? table_.get() : paths;
  const std::size_t index = table_ ? key.local : key.place;
  if (table == nullptr || index >= table->size()) return Outcome::io_error(ERANGE, "index");
  UniqueFd file;
  if (const Outcome opened = table->open(index, file); !opened.ok()) return opened;
  std::size_t size = 0;
  if (const Outcome got = read_all(file.get(), scratch.file, size); !got.ok()) return got;
  return scratch.jpeg.open(scratch.file.data(), size, max_pixels_);
}

Outcome ImageFileFiller::fill(const SampleKey& key, const PathTable* paths, const TensorSpec& want, std::uint8_t* row,
                              TensorSpec& got, Scratch& scratch) const noexcept {
  try {
    if (const Outcome opened = open(key, paths, scratch); !opened.ok()) return opened;
  } catch (const std::bad_alloc&) {
    return Outcome::to_python("out of memory");
  }
  JpegSource source(scratch.jpeg);
  return run(*recipe_, source, key.draws(), want, row, got, scratch.recipe);
}

Outcome ImageFileFiller::read(const SampleKey& key, const PathTable* paths, Picture& picture,
                              Scratch& scratch) const noexcept {
  try {
    Outcome outcome = open(key, paths, scratch);
    if (!outcome.ok()) return outcome;
    JpegSource source(scratch.jpeg);
    if (source.channels() != recipe_->channels) return Outcome::to_python("the image has another number of channels");
    outcome = scratch.recipe.plan(*recipe_, key.draws(), {source.height(), source.width()});
    if (!outcome.ok()) return outcome;
    picture.spec = spec_of(*recipe_, scratch.recipe.result());
    picture.padded = scratch.recipe.padded();
    std::int64_t bytes = 0;
    if (!checked_bytes(picture.spec, bytes)) return Outcome::to_python("an image too large");
    picture.pixels = std::make_unique_for_overwrite<std::uint8_t[]>(static_cast<std::size_t>(bytes));
    picture.head.assign(reinterpret_cast<const char*>(scratch.file.data()), scratch.jpeg.head());
    return scratch.recipe.execute(*recipe_, source, picture.pixels.get());
  } catch (const std::exception&) {  // bad_alloc, or a size no vector can have
    return Outcome::to_python("out of memory");
  }
}

Outcome ImageFileFiller::fill_from_pixels(const SampleKey& key, const std::uint8_t* pixels, int height, int width,
                                          int channels, const TensorSpec& want, std::uint8_t* row, TensorSpec& got,
                                          RecipeScratch& scratch) const noexcept {
  ArraySource source(pixels, height, width, channels, static_cast<std::ptrdiff_t>(width) * channels);
  return run(*recipe_, source, key.draws(), want, row, got, scratch);
}

Outcome ImageArrayFiller::fill(const SampleKey& key, const PathTable*, const TensorSpec& want, std::uint8_t* row,
                               TensorSpec& got, Scratch& scratch) const noexcept {
  if (key.local >= count_) return Outcome::io_error(ERANGE, "index");
  return planar_ ? fill_as<PlanarSource>(key, want, row, got, scratch)
                 : fill_as<ArraySource>(key, want, row, got, scratch);
}

template <class Source>
Outcome ImageArrayFiller::fill_as(const SampleKey& key, const TensorSpec& want, std::uint8_t* row, TensorSpec& got,
                                  Scratch& scratch) const noexcept {
  static_assert(std::is_trivially_destructible_v<Source>);
  const std::size_t bytes = memory_bytes();
  const std::uint8_t* const image = base_ + key.local * bytes;
  Source theirs(image, height_, width_, channels_);
  const Outcome laid_out = lay_out(*recipe_, theirs, key.draws(), want, got, scratch.recipe);
  if (!laid_out.ok()) return laid_out;
  if (Guard::kReads && scratch.recipe.one_pass(*recipe_, theirs))
    return scratch.guard.read(image, bytes, [&] { return execute(*recipe_, theirs, row, scratch.recipe); });
  // Other recipes must not end in a jump (guarded.h): they read a copy.
  try {
    if (scratch.image.size() < bytes) scratch.image.resize(bytes);
  } catch (const std::exception&) {  // bad_alloc, or a size no vector can have
    return Outcome::to_python("out of memory");
  }
  scratch.guard.copy(scratch.image.data(), image, bytes);
  Source copy(scratch.image.data(), height_, width_, channels_);
  return execute(*recipe_, copy, row, scratch.recipe);
}

void ImageArrayFiller::prefetch(std::size_t local) const noexcept {
  if (local < count_) prefetch_bytes(base_ + local * memory_bytes(), memory_bytes());
}

std::size_t ImageArrayFiller::memory_bytes() const noexcept {
  return static_cast<std::size_t>(height_) * static_cast<std::size_t>(width_) * static_cast<std::size_t>(channels_);
}

}  // namespace penstock
