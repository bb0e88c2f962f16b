#include "image/mapping.h"

#include <algorithm>
#include <variant>

namespace penstock {
namespace {

std::int32_t* write(const AxisMap& map, std::int32_t* to) {
  const int size = map.size();
  if (!map.affine()) {
    for (int i = 0; i < size; ++i) to[i] = map.at(i);
    return to + size;
  }
  to = std::fill_n(to, map.before(), -1 - map.fill_before());
  if (const int count = map.count(); count > 0) {
    const int first = map.at(map.before()), step = map.reversed() ? -1 : 1;
    for (int i = 0; i < count; ++i) to[i] = first + step * i;
    to += count;
  }
  return std::fill_n(to, map.after(), -1 - map.fill_after());
}

}  // namespace

Extent mapped_size(const Recipe& recipe, Extent source) {
  // Whether this one resizes depends on what it draws.
  for (const Operation& operation : recipe.operations)
    if (std::holds_alternative<RandomResizedCrop>(operation)) return {};
  RecipeScratch scratch;
  if (!scratch.plan(recipe, {{}, 0, 0}, source).ok() || scratch.only() == nullptr) return {};
  return scratch.result();
}

Outcome write_maps(const Recipe& recipe, Extent source, Extent result, std::uint64_t seed, std::uint64_t epoch,
                   const std::int64_t* samples, const std::int64_t* positions, std::size_t count,
                   std::int32_t* maps) noexcept {
  return without_throwing([&] {
    RecipeScratch scratch;
    const PhiloxKey key = epoch_key(seed, epoch);
    for (std::size_t i = 0; i < count; ++i) {
      const SampleDraws draws(key, static_cast<std::uint64_t>(samples[i]), static_cast<std::uint64_t>(positions[i]));
      const Outcome planned = scratch.plan(recipe, draws, source);
      if (!planned.ok()) return planned;
      const Segment* const only = scratch.only();
      if (only == nullptr || !(scratch.result() == result)) return Outcome::to_python("more than axis maps");
      maps = write(only->x, write(only->y, maps));
    }
    return Outcome::success();
  });
}

}  // namespace penstock
