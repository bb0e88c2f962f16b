#include "image/image_filler.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "image/pixel_cache_filler.h"

#include "tensor/npy_header.h"

namespace penstock {
namespace {

// An encoded image larger than this is left to Pillow, which reads it piece by piece.
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;
constexpr const char* kTooLarge = "an encoded image of over 1 GiB";
constexpr std::size_t kFirstRead = 256 * 1024;  // one read suffices for most photos

constexpr std::int64_t kMaxSide = 0xffff;  // of a decoded image: as of a JPEG file

// nullptr when `image` is the array in the bytes of a file, with `channels` channels; else why Python reads it.
const char* find_image(std::span<const std::uint8_t> bytes, int channels, DecodedImage& image) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kNpyMagic)) return "not an .npy file";
  NpyHeader header;
  if (const char* reason = read_npy_header(text, header)) return reason;
  const TensorSpec& spec = header.spec;
  if (spec.dtype != DType::u8 || (spec.ndim != 2 && spec.ndim != 3)) return "the array is no image";
  if (header.fortran_order) return "npy: in Fortran order";
  if ((spec.ndim == 3 ? spec.shape[2] : 1) != channels || (spec.ndim == 3 && channels == 1))
    return "the image has another number of channels";
  for (int d = 0; d < 2; ++d)
    if (spec.shape[d] < 1 || spec.shape[d] > kMaxSide) return "an image of that size";
  std::int64_t size = 0;
  if (!checked_bytes(spec, size) || static_cast<std::uint64_t>(size) > bytes.size() - header.data_offset)
    return "npy: truncated";
  image = {bytes.data() + header.data_offset, static_cast<int>(spec.shape[0]), static_cast<int>(spec.shape[1]), channels};
  return nullptr;
}

}  // namespace

Outcome read_all(SampleFile& file, std::vector<std::uint8_t>& bytes, std::span<const std::uint8_t>& whole) {
  if (file.in_memory()) {
    whole = file.bytes();
    return whole.size() <= kMaxFileBytes ? Outcome::success() : Outcome::to_python(kTooLarge);
  }
  if (bytes.empty()) bytes.resize(kFirstRead);
  std::uint64_t size = 0;
  if (file.is_part()) {  // by one call, in which a checksum is compared as well
    std::uint64_t known = 0;
    if (const Outcome found = file.size(known); !found.ok()) return found;
    if (known > kMaxFileBytes) return Outcome::to_python(kTooLarge);
    if (known > bytes.size()) bytes.resize(known);
    if (!file.read(bytes.data(), known, 0, size)) return file.failure();
    whole = {bytes.data(), size};
    return Outcome::success();
  }
  while (true) {
    if (size == bytes.size()) {
      if (bytes.size() >= kMaxFileBytes) return Outcome::to_python(kTooLarge);
      bytes.resize(std::min(kMaxFileBytes, bytes.size() * 2));
    }
    const iovec room{bytes.data() + size, bytes.size() - size};
    const ssize_t got = file.readv({&room, 1}, size);
    if (got < 0) return file.failure();
    if (got == 0) break;
    size += static_cast<std::uint64_t>(got);
  }
  whole = {bytes.data(), size};
  return Outcome::success();
}

Outcome JpegSource::decode(Box need, const std::uint8_t*& data, std::ptrdiff_t& row_stride) noexcept {
  JpegIndex* const index = indexed_.index;
  if (index == nullptr) return decoder_.decode(need, data, row_stride);
  const IndexedFile file{indexed_.file, decoder_.head(), decoder_.mcu_rows()};
  const unsigned known = index->find(indexed_.sample, file, need.y0 / decoder_.mcu_height(), *indexed_.states);
  const Outcome outcome = decoder_.decode(need, data, row_stride, indexed_.states);
  if (outcome.ok()) index->keep(indexed_.sample, file, *indexed_.states, known);
  return outcome;
}

Outcome JpegSource::pixels(Box need, ImagePart& part) noexcept {
  const std::uint8_t* data = nullptr;
  std::ptrdiff_t row_stride = 0;
  const Outcome outcome = decode(need, data, row_stride);
  if (!outcome.ok()) return outcome;
  clock_.lap(Stage::decode);
  part = {data, row_stride, need.x0, need.y0, need.x1 - need.x0, need.y1 - need.y0, width(), height(), 3};
  return outcome;
}

void ImageScratch::release() noexcept {
  std::vector<std::uint8_t>().swap(file);
  std::vector<std::uint8_t>().swap(copy);
  jpeg.release();
  recipe.release();
}

Outcome open_image(const FileLocation& where, std::uint64_t max_pixels, EncodedImage& encoded, Scratch& all,
                   ImageScratch& scratch) {
  if (const Outcome opened = all.open(where, encoded.file); !opened.ok()) return opened;
  scratch.clock.lap(Stage::open);
  if (const Outcome got = read_all(encoded.file, scratch.file, encoded.bytes); !got.ok()) return got;
  scratch.clock.lap(Stage::read);
  scratch.clock.add_bytes(Stage::read, encoded.file.bytes_read());
  return scratch.jpeg.open(encoded.bytes.data(), encoded.bytes.size(), max_pixels);
}

std::shared_ptr<PixelCacheFiller> ImageFileFiller::keeping_pixels(std::shared_ptr<const SampleCache> cache,
                                                                  std::size_t operations) const {
  return std::make_shared<PixelCacheFiller>(table_, recipe_, max_pixels_, std::move(cache), operations);
}

Outcome ImageFileFiller::fill(const SampleKey& key, const FileTable* paths, const TensorSpec& want, std::uint8_t* row,
                              TensorSpec& got, Scratch& all) const noexcept {
  return without_throwing([&] {
    auto& scratch = all.part<ImageScratch>();
    EncodedImage encoded;
    const Outcome opened = open_image(locate(key, paths), max_pixels_, encoded, all, scratch);
    if (!opened.ok()) return opened;
    JpegSource source(scratch.jpeg, scratch.clock, indexed_file(key, encoded, scratch));
    const Outcome outcome = run(*recipe_, source, key.draws(), want, row, got, scratch.recipe);
    if (outcome.ok()) scratch.clock.lap(Stage::convert);
    return outcome;
  });
}

Outcome fill_decoded(const Recipe& recipe, const SampleKey& key, const DecodedImage& image, const TensorSpec& want,
                     std::uint8_t* row, TensorSpec& got, Scratch& all) noexcept {
  return without_throwing([&] {
    auto& scratch = all.part<ImageScratch>();
    MemorySource source(image.data, image.height, image.width, image.channels);
    const Outcome outcome = run(recipe, source, key.draws(), want, row, got, scratch.recipe);
    if (outcome.ok()) scratch.clock.lap(Stage::convert);
    return outcome;
  });
}

Outcome PixelFileFiller::fill(const SampleKey& key, const FileTable*, const TensorSpec& want, std::uint8_t* row,
                              TensorSpec& got, Scratch& all) const noexcept {
  return without_throwing([&] {
    auto& scratch = all.part<ImageScratch>();
    SampleFile file;
    if (const Outcome opened = all.open(locate(key, nullptr), file); !opened.ok()) return opened;
    scratch.clock.lap(Stage::open);
    std::span<const std::uint8_t> bytes;
    if (const Outcome read = read_all(file, scratch.file, bytes); !read.ok()) return read;
    scratch.clock.lap(Stage::read);
    scratch.clock.add_bytes(Stage::read, file.bytes_read());
    DecodedImage image;
    if (const char* reason = find_image(bytes, recipe_->channels, image)) return Outcome::to_python(reason);
    return fill_decoded(*recipe_, key, image, want, row, got, all);
  });
}

Outcome ImageArrayFiller::fill(const SampleKey& key, const FileTable*, const TensorSpec& want, std::uint8_t* row,
                               TensorSpec& got, Scratch& all) const noexcept {
  if (key.local >= count_) return Outcome::io_error(ERANGE, "index");
  return without_throwing([&] {
    ImageScratch& scratch = all.part<ImageScratch>();
    const std::uint8_t* const image = all.staged != nullptr ? all.staged : base_ + key.local * memory_bytes();
    MemorySource source = layout_ == PixelLayout::interleaved ? MemorySource(image, height_, width_, channels_)
                                                              : MemorySource::planar(image, height_, width_, channels_);
    const Outcome outcome = run(*recipe_, source, key.draws(), want, row, got, scratch.recipe);
    if (!outcome.ok()) return outcome;
    if (scratch.recipe.only() != nullptr) {
      scratch.clock.defer(Stage::convert);
    } else {
      scratch.clock.lap(Stage::convert);
    }
    return outcome;
  });
}

void ImageArrayFiller::stage(std::size_t local, std::uint8_t* to) const noexcept {
  if (local < count_) std::memcpy(to, base_ + local * memory_bytes(), memory_bytes());
}

void ImageArrayFiller::prefetch(std::size_t local) const noexcept {
  if (local < count_) prefetch_bytes(base_ + local * memory_bytes(), memory_bytes());
}

std::size_t ImageArrayFiller::memory_bytes() const noexcept {
  return static_cast<std::size_t>(height_) * static_cast<std::size_t>(width_) * static_cast<std::size_t>(channels_);
}

}  // namespace penstock
