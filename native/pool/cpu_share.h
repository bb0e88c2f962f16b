// Keeps a thread that computes without a pause at its share of the CPUs beside other programs.
//
// Linux shares the CPUs out among groups (of a session, of a cgroup), and weighs a group on each CPU by what of it is
// there: a group whose threads never sleep is given much less than one whose threads come and go, measured a third (the
// kernel's sched-design-CFS.rst and sched-eevdf.rst describe the mechanism). While the thread waits for a CPU in more
// than one of twenty moments, another thread of the process wakes once a millisecond, which takes 1.2 % of a CPU.
//
// Threads: made, asked and destroyed by the thread that it is for. Memory: owns its thread and what that works with; a
// forked process that inherits it has no such thread, and leaves that memory as it is.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "files/unique_fd.h"

namespace penstock {

// Sees whether a thread waits for CPUs.
class ReadyClock {
 public:
  // Of the calling thread.
  ReadyClock() noexcept;

  // Whether the last call of waits() is long ago.
  [[nodiscard]] bool is_old() const noexcept;
  // Whether the thread was ready and waited for much of the time since the last call.
  bool waits() noexcept;

 private:
  UniqueFd statistics_;  // its schedstat
  std::chrono::steady_clock::time_point looked_;
  std::uint64_t waited_;
};

class CpuShare {
 public:
  CpuShare() noexcept;
  ~CpuShare();
  CpuShare(const CpuShare&) = delete;
  CpuShare& operator=(const CpuShare&) = delete;

  // Looks whether the calling thread waits for CPUs, where the last look is old; from the first time on the other thread
  // looks itself.
  void look();
  // Whether the other thread runs.
  [[nodiscard]] bool keeps() const noexcept { return waker_ != nullptr; }

 private:
  class Waker;

  pid_t process_;
  ReadyClock clock_;
  std::unique_ptr<Waker> waker_;
};

}  // namespace penstock
