#include "image/pixel_cache_filler.h"

#include <cerrno>
#include <exception>
#include <span>

#include "files/little_endian.h"

namespace penstock {
namespace {

// Before the pixels, little-endian: kMagic, height, width, channels.
constexpr std::size_t kHeaderBytes = 16;
constexpr std::uint32_t kMagic = 0x3158'4950;  // "PIX1"

void put32(std::uint8_t* to, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::uint8_t>(value >> (8 * i));
}

std::uint64_t bytes_of(const DecodedImage& image) {
  return std::uint64_t(image.height) * std::uint64_t(image.width) * std::uint64_t(image.channels);
}

void write_header(const DecodedImage& image, std::uint8_t* to) {
  put32(to, kMagic);
  put32(to + 4, static_cast<std::uint32_t>(image.height));
  put32(to + 8, static_cast<std::uint32_t>(image.width));
  put32(to + 12, static_cast<std::uint32_t>(image.channels));
}

// False where the bytes are not an image of so many channels.
bool read_header(std::span<const std::uint8_t> bytes, int channels, DecodedImage& image) {
  if (bytes.size() < kHeaderBytes || le32(bytes.data()) != kMagic) return false;
  const std::uint32_t height = le32(bytes.data() + 4), width = le32(bytes.data() + 8), found = le32(bytes.data() + 12);
  if (height == 0 || width == 0 || height > kMaxAxis || width > kMaxAxis || found != static_cast<std::uint32_t>(channels))
    return false;
  image = {bytes.data() + kHeaderBytes, static_cast<int>(height), static_cast<int>(width), channels};
  return bytes_of(image) == bytes.size() - kHeaderBytes;
}

MemorySource source_of(const DecodedImage& image) { return {image.data, image.height, image.width, image.channels}; }

}  // namespace

FileLocation PixelCacheFiller::locate(const SampleKey& key, const FileTable* paths) const noexcept {
  FileLocation where = files_.locate(key, paths);
  where.cache = cache_.get();
  where.sample = key.local;
  where.keeps_file = false;
  return where;
}

// The pixels that a tier has, in the scratch's memory. False: the file has to be decoded.
bool PixelCacheFiller::find(const FileLocation& where, ImageScratch& scratch, DecodedImage& image) const {
  std::span<const std::uint8_t> bytes;
  return cache_->find(where.sample, where.table->name(where.index), scratch.file, bytes) &&
         read_header(bytes, split_.rest->channels, image);
}

Outcome PixelCacheFiller::lay_out(const PixelSource& source, ImageScratch& scratch, DecodedImage& image) const {
  const Recipe& first = *split_.first;
  if (source.channels() != first.channels) return Outcome::to_python("the image has another number of channels");
  const Outcome planned = scratch.recipe.plan(first, {{}, 0, 0}, {source.height(), source.width()});
  const Extent size = planned.ok() ? scratch.recipe.result() : Extent{};
  image = {nullptr, size.height, size.width, first.output.channels};
  return planned;
}

bool PixelCacheFiller::has_space(const DecodedImage& image) const noexcept {
  return cache_->has_space(kHeaderBytes + bytes_of(image));
}

Outcome PixelCacheFiller::make(PixelSource& source, std::uint64_t sample, std::string_view name, ImageScratch& scratch,
                               DecodedImage& image) const {
  const std::size_t bytes = kHeaderBytes + static_cast<std::size_t>(bytes_of(image));
  if (scratch.copy.size() < bytes) scratch.copy.resize(bytes);
  write_header(image, scratch.copy.data());
  image.data = scratch.copy.data() + kHeaderBytes;
  const Outcome made = scratch.recipe.execute(*split_.first, source, scratch.copy.data() + kHeaderBytes);
  if (made.ok()) cache_->keep(sample, name, {scratch.copy.data(), bytes});
  return made;
}

Outcome PixelCacheFiller::fill(const SampleKey& key, const FileTable* paths, const TensorSpec& want, std::uint8_t* row,
                               TensorSpec& got, Scratch& all) const noexcept {
  return without_throwing([&] {
    auto& scratch = all.part<ImageScratch>();
    FileLocation where = locate(key, paths);
    if (where.table == nullptr || where.index >= where.table->size()) return Outcome::io_error(ERANGE, "index");
    const auto give = [&](const Recipe& recipe, PixelSource& source) {
      const Outcome outcome = run(recipe, source, key.draws(), want, row, got, scratch.recipe);
      if (outcome.ok()) scratch.clock.lap(Stage::convert);
      return outcome;
    };
    DecodedImage image{};
    if (find(where, scratch, image)) {
      scratch.clock.lap(Stage::read);
      MemorySource kept = source_of(image);
      return give(*split_.rest, kept);
    }
    where.cache = nullptr;
    EncodedImage encoded;
    if (const Outcome opened = open_image(where, max_pixels_, encoded, all, scratch); !opened.ok()) return opened;
    JpegSource source(scratch.jpeg, scratch.clock);
    if (const Outcome laid_out = lay_out(source, scratch, image); !laid_out.ok()) return laid_out;
    if (!has_space(image)) return give(*whole_, source);
    const Outcome made = make(source, where.sample, where.table->name(where.index), scratch, image);
    if (!made.ok()) return made;
    MemorySource decoded = source_of(image);
    return give(*split_.rest, decoded);
  });
}

bool PixelCacheFiller::keep(std::uint64_t sample, std::string_view name, const DecodedImage& image) const noexcept {
  if (image.height <= 0 || image.width <= 0) return false;
  const std::uint64_t pixels = std::uint64_t(image.height) * std::uint64_t(image.width);
  if (max_pixels_ != 0 && pixels > max_pixels_) return false;  // Pillow warns of it each time
  try {
    StageClock uncounted(nullptr);
    ImageScratch scratch(uncounted);
    MemorySource source = source_of(image);
    DecodedImage made{};
    return lay_out(source, scratch, made).ok() && has_space(made) && make(source, sample, name, scratch, made).ok();
  } catch (const std::exception&) {  // bad_alloc, or a size no vector can have
    return false;
  }
}

}  // namespace penstock
