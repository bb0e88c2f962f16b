// An index of decoder states: of each JPEG file of a dataset, where the entropy decoder stands before rows of MCUs, so
// that the rows above a crop need not be decoded. It is made of the rows that are passed anyway, while images are
// decoded, and grows downwards when a later crop reaches further.
//
// It is a file of a set size, little-endian: a header, a byte a sample (how many states are known), and a slot a sample
// with the states of every row, or of every 2nd, 3rd, ... where a slot is too small for all.
//
// A slot is checked before each use: its CRC-32C is that of all bytes of the image's file that the states describe, from
// the first byte of the file to the last state, followed by what is in the slot. What a decoder does with a state depends
// on these bytes, and on those behind it, which it decodes. So a file that was changed, or a damaged slot, is noticed,
// unless the change leaves the CRC-32C as it was: one of 2^32 does.
//
// Threads: any number of threads, of any number of processes, may call everything at once, also in forked children:
// there is no lock. A slot that several write at once, or that a process wrote in part, fails its check until it is
// written anew. Memory: it owns its descriptor, and a byte a sample, which forked processes share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "files/unique_fd.h"
#include "jpeg/row_state.h"

namespace penstock {

// An open JPEG file, as the index knows it. Borrowed.
struct IndexedFile {
  std::span<const std::uint8_t> bytes;
  std::size_t head = 0;  // bytes before the entropy-coded data
  int mcu_rows = 0;      // 0: its states cannot be kept
};

class JpegIndex {
 public:
  // `file`: of `samples` slots of `slot_bytes` each, open for reading and, where it is `writable`, for writing; an empty
  // one gets its size and its header. Throws std::invalid_argument where it is another file, or for a slot size out of
  // range, and std::system_error.
  JpegIndex(UniqueFd file, std::uint64_t samples, std::uint32_t slot_bytes, bool writable);
  ~JpegIndex();
  JpegIndex(const JpegIndex&) = delete;
  JpegIndex& operator=(const JpegIndex&) = delete;

  // An index in memory that no file system names. Throws as the constructor does.
  [[nodiscard]] static std::shared_ptr<JpegIndex> in_memory(std::uint64_t samples, std::uint32_t slot_bytes);

  // The size of the file. Throws std::invalid_argument for more samples than a file can hold.
  [[nodiscard]] static std::uint64_t file_bytes(std::uint64_t samples, std::uint32_t slot_bytes);

  // Gives `states` what is known of the rows up to the last state that was kept, where that helps to reach `row`, of MCUs,
  // and has passed the check; nothing else. Returns how many states keep() need not keep again.
  unsigned find(std::uint64_t sample, const IndexedFile& file, int row, jpeg::RowStates& states) noexcept;

  // Keeps states of rows that were passed, where they are more than the `known` ones that find() returned.
  void keep(std::uint64_t sample, const IndexedFile& file, const jpeg::RowStates& states, unsigned known) noexcept;

  // Looks which samples other processes have kept since.
  void refresh() noexcept;

  struct Counts {
    std::uint64_t files;          // of which a state is known
    std::uint64_t bytes;          // that the index takes
    std::uint64_t hits, changed;  // of this process and those forked off from it: used, and found to be of other bytes
    int error;                    // why this process writes no more: errno, 0 where it does
  };
  [[nodiscard]] Counts counts() const noexcept;

  static constexpr std::uint32_t kLeastSlot = 32, kMostSlot = 512;

 private:
  struct Noted;

  [[nodiscard]] std::uint64_t noted_bytes() const noexcept;
  void prepare();
  void note(std::uint64_t sample, std::uint8_t points) noexcept;
  [[nodiscard]] std::uint64_t slot_at(std::uint64_t sample) const noexcept;
  [[nodiscard]] int step_of(int mcu_rows) const noexcept;
  [[nodiscard]] bool write(std::span<const std::uint8_t> bytes, std::uint64_t offset) noexcept;

  const UniqueFd file_;
  const std::uint64_t samples_;
  const std::uint32_t slot_bytes_;
  const bool writable_;
  Noted* noted_ = nullptr;  // shared with forked processes; memory that is not used is not taken
};

}  // namespace penstock
