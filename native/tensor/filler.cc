#include "tensor/filler.h"

#include <cerrno>

namespace penstock {
std::size_t Scratch::held() const noexcept {
  std::size_t bytes = cached_.capacity();
  for (const auto& [kind, part] : parts_) bytes += part->held();
  return bytes;
}

Outcome Scratch::open(const FileLocation& where, SampleFile& file) noexcept {
  if (brought) {
    const std::unique_ptr<BroughtFile> taken = std::move(brought);
    file = std::move(taken->file);
    return taken->outcome;
  }
  if (where.table == nullptr || where.index >= where.table->size()) return Outcome::io_error(ERANGE, "index");
  if (where.cache != nullptr) return where.cache->open(where.sample, *where.table, where.index, cached_, file);
  return where.table->open(where.index, file);
}

void Scratch::trim() noexcept {
  if (held() <= kKeptBytes) return;
  for (auto& [kind, part] : parts_) part->release();
  std::vector<std::uint8_t>().swap(cached_);
}

Outcome Filler::fill_from_pixels(const SampleKey&, const DecodedImage&, const TensorSpec&, std::uint8_t*, TensorSpec&,
                                 Scratch&) const noexcept {
  return Outcome::to_python("not an image field");
}

}  // namespace penstock
