// The quantised coefficients of a whole JPEG, by libjpeg and by the decoder of native/jpeg/: for tests and the fuzzer, which
// compare the two.
//
// Threads: an object belongs to one thread at a time. Memory: a file's bytes are borrowed for the life of the object; results
// own theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "jpeg/entropy_decoder.h"
#include "jpeg/row_state.h"
#include "jpeg/scan.h"

namespace penstock::reference {

// The blocks of a component, in rows of whole MCUs: values[(y * columns + x) * 64 + i], i in natural order.
struct Blocks {
  int rows = 0, columns = 0;
  std::vector<std::int16_t> values;

  friend bool operator==(const Blocks&, const Blocks&) = default;
};
using Coefficients = std::vector<Blocks>;  // a component each

class LibjpegFile {
 public:
  explicit LibjpegFile(std::span<const std::uint8_t> data);
  ~LibjpegFile();
  LibjpegFile(const LibjpegFile&) = delete;
  LibjpegFile& operator=(const LibjpegFile&) = delete;

  // Reads the header. False: libjpeg warns or fails, or the image has more pixels.
  [[nodiscard]] bool open(std::uint64_t most_pixels);
  // What our decoder needs of an open file; nothing where the file is no sequential one whose first scan holds all
  // components, in order. Its tables are this object's.
  [[nodiscard]] std::optional<jpeg::Scan> scan();
  // Of an open file, which is read to its end. Nothing where libjpeg warns or fails.
  [[nodiscard]] std::optional<Coefficients> coefficients();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// How our decoder comes to the rows that it decodes.
struct Way {
  int run = 0;                         // MCUs a call of decode(); 0: those of a row
  int first_row = 0;                   // rows of MCUs above are passed over
  std::optional<jpeg::RowState> from;  // the state before first_row; without it the rows above are skipped
};

// By our decoder, from way.first_row to the end. Nothing where it does not decode the scan, or where no end-of-image marker
// follows it. `states` gets the state of each of these rows.
[[nodiscard]] std::optional<Coefficients> decode_scan(jpeg::EntropyDecoder& decoder, const jpeg::Scan& scan,
                                                      const Way& way = {}, jpeg::RowStates* states = nullptr);

}  // namespace penstock::reference
