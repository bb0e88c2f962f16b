// Augmentations from the descriptions that src/penstock/recipe/augmentations.py and policies.py make.
//
// Threads: Python's lock is held. Memory: what is returned holds nothing of Python's.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "image/augmentation.h"

namespace penstock {

// What a description names in a table of names. Throws ValueError.
template <class E, std::size_t N>
E named(const char* what, const std::string& name, const std::array<std::pair<std::string_view, E>, N>& names) {
  for (const auto& [key, value] : names)
    if (key == name) return value;
  throw nanobind::value_error((std::string(what) + " '" + name + "' is not known").c_str());
}

// Throws ValueError.
[[nodiscard]] Filter filter_named(const std::string& name);

// Throws what nanobind's casts throw, and ValueError, for a description that is none.
[[nodiscard]] AugmentationPtr augmentation_from(const nanobind::dict& description);

}  // namespace penstock
