// A range of a WAV file: integers of 8, 16, 24 and 32 bits, or floats of 32, plain or "extensible".
//
// Format: IBM and Microsoft, "Multimedia Programming Interface and Data Specifications 1.0" (RIFF WAVE), and
// WAVEFORMATEXTENSIBLE. Taken are files of chunks that libsndfile and FFmpeg read alike; every length is checked against
// the file. Values are those of libsndfile and of FFmpeg's swresample: the integer, left-justified in 32 bits, times 2^-31.
// Threads: a WavFile belongs to one thread at a time. Memory: it owns its scratch; what is read goes into the caller's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "files/sample_file.h"

namespace penstock {

// How the file holds a value, and what a value becomes.
enum class WavCode : std::uint8_t { u8, s16, s24, s32, f32 };
enum class WavValue : std::uint8_t { f64, f32, i32, i16 };

inline constexpr std::array<std::size_t, 5> kWavCodeBytes{1, 2, 3, 4, 4};
inline constexpr std::array<std::size_t, 4> kWavValueBytes{8, 4, 4, 2};

struct WavFormat {
  WavCode code = WavCode::u8;
  std::uint32_t channels = 0;
  std::uint32_t rate = 0;        // frames a second
  std::uint32_t speakers = 0;    // of an extensible file, its channel mask; 0: none is given
  std::uint64_t offset = 0;      // of the first frame in the file
  std::uint64_t frames = 0;      // a frame is one value of each channel

  [[nodiscard]] std::size_t frame_bytes() const { return channels * kWavCodeBytes[static_cast<std::size_t>(code)]; }
};

class WavFile {
 public:
  // Opens a file and reads its header. nullptr, or why it is left to another library (static storage duration).
  [[nodiscard]] const char* open(const char* path) noexcept;
  // The same of a file's bytes, which somebody else keeps.
  [[nodiscard]] const char* open(std::span<const std::uint8_t> bytes) noexcept;
  [[nodiscard]] const WavFormat& format() const { return format_; }

  // Reads frames [begin, begin + frames), which lie in the file, into memory for frames x channels values, or where
  // `planar` for channels x frames. Floats become no integers.
  [[nodiscard]] const char* read(std::uint64_t begin, std::uint64_t frames, WavValue value, bool planar, void* to) noexcept;

  // nullptr, or why FFmpeg might find another codec in the samples (S/PDIF, DTS), or another layout of the channels.
  [[nodiscard]] const char* plain() noexcept;

  void trim() noexcept { file_ = {}; }

 private:
  const char* open(SampleFile file, std::uint64_t size) noexcept;
  const char* parse(std::span<const std::uint8_t> head, std::uint64_t size) noexcept;

  SampleFile file_;
  WavFormat format_;
  std::array<std::uint8_t, 64 * 1024> scratch_;
};

}  // namespace penstock
