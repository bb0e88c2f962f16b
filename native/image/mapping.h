// The axis maps of many samples: for a device that gathers the pixels of a batch itself.
//
// Threads: any; each call has its own working memory. Memory: the caller's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "files/outcome.h"
#include "image/recipe.h"

namespace penstock {

// The size of the result for sources of this size, where only axis maps lead to it whatever is drawn: by crops, pads
// and flips. Zeros for a recipe that resizes or makes grey, and where torchvision would raise.
[[nodiscard]] Extent mapped_size(const Recipe& recipe, Extent source);

// Writes the maps that a pool draws for (seed, epoch, samples[i], positions[i]): for each of `count` samples
// `result.height` source rows, then `result.width` source columns; -1 - k where fill k is shown. A pixel outside in both
// shows the greater k.
// `result` is mapped_size(recipe, source), and `maps` has room for count * (result.height + result.width) numbers.
[[nodiscard]] Outcome write_maps(const Recipe& recipe, Extent source, Extent result, std::uint64_t seed,
                                 std::uint64_t epoch, const std::int64_t* samples, const std::int64_t* positions,
                                 std::size_t count, std::int32_t* maps) noexcept;

}  // namespace penstock
