// The marker segments of a JPEG, as far as libjpeg does not check them itself.
//
// Threads: pure functions of their arguments. Memory: the bytes are borrowed for the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "files/outcome.h"

namespace penstock {

struct JpegSegments {
  std::size_t scan = 0;    // position of the first SOS segment's length
  std::size_t end = 0;     // position after that segment
  std::uint8_t frame = 0;  // the SOF marker
};

// Walks the segments up to the first SOS. Only the plain form passes: SOI, then segments without bytes between.
[[nodiscard]] Outcome read_segments(const std::uint8_t* data, std::size_t size, JpegSegments& found);

// The application segments (APPn) of a header that read_segments() has passed, as they lie in the file, where one of them
// is APP1, which may hold the orientation of Exif; else nothing.
[[nodiscard]] std::string application_segments(const std::uint8_t* data, std::size_t size);

// True when an end-of-image marker follows: a file that was cut off is noticed, although the end of a file of one scan is
// looked for by end_of_scan() and libjpeg finds that of others.
[[nodiscard]] bool has_end(const std::uint8_t* data, std::size_t size, std::size_t from);

// Where the entropy-coded data from `at` on end: the position of the first marker that is not a restart marker.
[[nodiscard]] std::size_t end_of_scan(const std::uint8_t* data, std::size_t size, std::size_t at);

}  // namespace penstock
