// What became of one sample in the native core.
//
// Threads: plain values; any thread may make, copy and read them. Memory: `reason` points to a string
// with static storage duration, so that an Outcome is trivially copyable and never allocates.
#pragma once

#include <array>
#include <cstdint>
#include <exception>

namespace penstock {

enum class Code : std::uint8_t {
  ok,        // the row is written
  python,    // this reader cannot: Pillow or torch.load decides, and has the last word on what is corrupt
  io,        // a system call failed; `error` holds errno
  escapes,   // the name leaves its root folder
  mismatch,  // the sample's shape or dtype is not the batch's
};

// Their names, in order.
inline constexpr std::array<const char*, 5> kCodes{"ok", "python", "io", "escapes", "mismatch"};

struct Outcome {
  Code code = Code::ok;
  int error = 0;
  const char* reason = nullptr;

  [[nodiscard]] constexpr bool ok() const { return code == Code::ok; }

  static constexpr Outcome success() { return {}; }
  static constexpr Outcome to_python(const char* reason) { return {Code::python, 0, reason}; }
  static constexpr Outcome io_error(int error, const char* call) { return {Code::io, error, call}; }
  static constexpr Outcome escape(const char* reason) { return {Code::escapes, 0, reason}; }
  static constexpr Outcome mismatch(const char* reason) { return {Code::mismatch, 0, reason}; }
};

// What work() returns; whatever it throws is memory that there is not: bad_alloc, or a size that no vector can have.
template <class Work>
[[nodiscard]] Outcome without_throwing(Work&& work) noexcept {
  try {
    return work();
  } catch (const std::exception&) {
    return Outcome::to_python("out of memory");
  }
}

}  // namespace penstock
