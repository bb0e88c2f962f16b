#include "tensor/filler.h"

#include <cerrno>

namespace penstock {
std::size_t Scratch::held() const noexcept {
  std::size_t bytes = 0;
  for (const auto& [kind, part] : parts_) bytes += part->held();
  return bytes;
}

Outcome Scratch::open(const FileLocation& where, SampleFile& file) const noexcept {
  if (where.table == nullptr || where.index >= where.table->size()) return Outcome::io_error(ERANGE, "index");
  return where.table->open(where.index, file);
}

void Scratch::trim() noexcept {
  if (held() <= kKeptBytes) return;
  for (auto& [kind, part] : parts_) part->release();
}

Outcome Filler::fill_from_pixels(const SampleKey&, const DecodedImage&, const TensorSpec&, std::uint8_t*, TensorSpec&,
                                 Scratch&) const noexcept {
  return Outcome::to_python("not an image field");
}

}  // namespace penstock
