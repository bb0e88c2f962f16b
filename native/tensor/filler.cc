#include "tensor/filler.h"

namespace penstock {
std::size_t Scratch::held() const noexcept {
  std::size_t bytes = 0;
  for (const auto& [kind, part] : parts_) bytes += part->held();
  return bytes;
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
