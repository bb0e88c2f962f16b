#include "tensor/filler.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr std::size_t kCacheLine = 64;
// What prefetch_bytes() touches at the most: the processor's own prefetcher goes on from there.
constexpr std::size_t kPrefetchBytes = 4096;

}  // namespace

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

void Filler::prefetch_bytes(const std::uint8_t* data, std::size_t bytes) noexcept {
  for (std::size_t offset = 0; offset < std::min(bytes, kPrefetchBytes); offset += kCacheLine)
    __builtin_prefetch(data + offset);
}

}  // namespace penstock
