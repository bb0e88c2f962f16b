#include "image/pixel_filler.h"

#include <exception>
#include <span>
#include <string_view>

#include "tensor/npy_header.h"

namespace penstock {
namespace {

constexpr std::int64_t kMaxSide = 0xffff;  // as of a JPEG file

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

Outcome PixelFileFiller::fill(const SampleKey& key, const FileTable*, const TensorSpec& want, std::uint8_t* row,
                              TensorSpec& got, Scratch& all) const noexcept {
  try {
    auto& scratch = all.part<ImageScratch>();
    SampleFile file;
    if (const Outcome opened = all.open(locate(key, nullptr), file); !opened.ok()) return opened;
    scratch.clock.lap(Stage::open);
    std::span<const std::uint8_t> bytes;
    if (const Outcome read = read_all(file, scratch.file, bytes); !read.ok()) return read;
    scratch.clock.lap(Stage::read);
    DecodedImage image;
    if (const char* reason = find_image(bytes, recipe_->channels, image)) return Outcome::to_python(reason);
    return fill_decoded(*recipe_, key, image, want, row, got, all);
  } catch (const std::exception&) {  // bad_alloc, or a size no vector can have
    return Outcome::to_python("out of memory");
  }
}

}  // namespace penstock
