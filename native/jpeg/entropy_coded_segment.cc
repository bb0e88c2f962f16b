#include "jpeg/entropy_coded_segment.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace penstock::jpeg {

void EntropyCodedSegment::start(std::span<const std::uint8_t> data, std::size_t at, unsigned skip) noexcept {
  data_ = data;
  source_ = at;
  end_ = 0;
  stuffed_count_ = 0;
  closed_ = false;
  unstuff();
  reader.start(bytes_.data(), skip);
}

// B.1.1.5: a byte of ones is followed by a stuffed byte of zeros; anything else there is a marker, or the data end.
void EntropyCodedSegment::unstuff() noexcept {
  constexpr std::size_t kBlock = 16;
  while (!closed_ && end_ + kBlock <= kCapacity) {
    if (data_.size() - source_ <= kBlock) {
      unstuff_last();
      break;
    }
    const std::uint8_t* const from = data_.data() + source_;
    std::uint8_t* const to = bytes_.data() + end_;
#if defined(__SSE2__)
    const __m128i block = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), block);
    const auto found = static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(block, _mm_set1_epi8(-1))));
    const std::size_t plain = found == 0 ? kBlock : static_cast<std::size_t>(std::countr_zero(found));
#else
    const void* const found = std::memchr(from, 0xFF, kBlock);
    const std::size_t plain = found == nullptr ? kBlock : static_cast<const std::uint8_t*>(found) - from;
    std::memcpy(to, from, kBlock);
#endif
    source_ += plain;
    end_ += plain;
    if (plain == kBlock) continue;
    closed_ = from[plain + 1] != 0;
    if (closed_) break;
    stuffed_[stuffed_count_++] = static_cast<std::uint16_t>(end_++);
    source_ += 2;
  }
  // Within a closed segment only its end is looked at.
  limit_ = bytes_.data() + (closed_ ? end_ : end_ - std::min(end_, kMargin));
}

void EntropyCodedSegment::unstuff_last() noexcept {
  while (end_ < kCapacity) {
    const std::size_t left = data_.size() - source_;
    const bool ones = left > 0 && data_[source_] == 0xFF;
    closed_ = left == 0 || (ones && (left == 1 || data_[source_ + 1] != 0));
    if (closed_) return;
    if (ones) stuffed_[stuffed_count_++] = static_cast<std::uint16_t>(end_);
    bytes_[end_++] = data_[source_];
    source_ += ones ? 2 : 1;
  }
}

bool EntropyCodedSegment::make_room(BitReader& bits) noexcept {
  if (closed_) return !overrun(bits);
  // From the byte of the next bit on.
  const std::size_t first = static_cast<std::size_t>(position(bits) / 8);
  std::memmove(bytes_.data(), bytes_.data() + first, end_ - first);
  end_ -= first;
  bits.next -= first;
  const std::size_t kept = stuffed_behind(first), gone = stuffed_count_ - kept;
  for (std::size_t i = 0; i < kept; ++i) stuffed_[i] = static_cast<std::uint16_t>(stuffed_[gone + i] - first);
  stuffed_count_ = kept;
  unstuff();
  return !overrun(bits);
}

std::size_t EntropyCodedSegment::stuffed_behind(std::size_t byte) const noexcept {
  std::size_t before = stuffed_count_;
  while (before > 0 && stuffed_[before - 1] >= byte) --before;
  return stuffed_count_ - before;
}

std::uint64_t EntropyCodedSegment::position_in_data(const BitReader& bits) const noexcept {
  const std::uint64_t at = position(bits);
  const std::size_t byte = static_cast<std::size_t>(at / 8);
  return 8 * std::uint64_t{source_ - (end_ - byte) - stuffed_behind(byte)} + at % 8;
}

std::optional<EntropyCodedSegment::Marker> EntropyCodedSegment::marker(BitReader& bits) noexcept {
  if (!closed_ && !make_room(bits)) return std::nullopt;
  if (!closed_ || (position(bits) + 7) / 8 != end_) return std::nullopt;
  std::size_t at = source_;  // of a byte of ones, or the end of the data
  while (at + 1 < data_.size() && data_[at + 1] == 0xFF) ++at;  // B.1.1.2: fill bytes
  if (at + 1 >= data_.size()) return std::nullopt;
  return Marker{data_[at + 1], at + 2};
}

}  // namespace penstock::jpeg
