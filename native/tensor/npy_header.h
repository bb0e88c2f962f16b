// The header of a .npy file.
//
// Format: numpy/lib/format.py, versions 1.0, 2.0 and 3.0. The header is a Python dict literal; this
// reader takes it as numpy writes it (keys in any order), and leaves other spellings to numpy.load.
// Threads: a pure function. Memory: allocates nothing and keeps no pointer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tensor/dtype.h"

namespace penstock {

inline constexpr std::string_view kNpyMagic{"\x93NUMPY", 6};
inline constexpr std::size_t kMaxNpyHeader = 10'000;  // bytes; numpy.load refuses longer ones

struct NpyHeader {
  TensorSpec spec;
  bool fortran_order = false;
  std::size_t data_offset = 0;
};

// Bytes from the start of the file to its data, from the first 12 bytes of the file; 0 when the
// version is unknown or the header longer than kMaxNpyHeader.
[[nodiscard]] std::size_t npy_data_offset(std::string_view start);

// nullptr, or why the file is left to numpy.load (a string with static storage duration). `head` holds
// the file from its start to its data.
[[nodiscard]] const char* read_npy_header(std::string_view head, NpyHeader& header);

}  // namespace penstock
