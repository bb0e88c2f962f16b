#include "files/thread_clock.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <utility>

#include "files/unique_fd.h"

namespace penstock {
namespace {

// Bytes that a storage gave to the calling thread, in blocks of 512 (getrusage(2)); what lies in memory is not in it.
std::uint64_t bytes_now() noexcept {
  rusage usage{};
  return ::getrusage(RUSAGE_THREAD, &usage) == 0 ? 512 * static_cast<std::uint64_t>(usage.ru_inblock) : 0;
}

// What was last read of the calling thread, and when.
struct Known {
  std::uint64_t when = 0, ready = 0, bytes = 0;
};

const Known& known(std::uint64_t age) noexcept {
  thread_local Known latest;
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  const auto now = static_cast<std::uint64_t>(std::chrono::nanoseconds(since).count());
  if (now - latest.when >= age) latest = {now, ThreadClock::ready_now(), bytes_now()};
  return latest;
}

// A forked child's thread begins at 0.
std::uint64_t since(std::uint64_t& before, std::uint64_t now) noexcept {
  return now - std::min(now, std::exchange(before, now));
}

}  // namespace

void ThreadClock::start() noexcept {
  const Known& here = known(kFresh);
  ready_ = here.ready, bytes_ = here.bytes;
  running_ = running_now();
}

ThreadClock::Lap ThreadClock::lap(std::uint64_t nanoseconds) noexcept {
  Lap found{.running = since(running_, running_now())};
  if (nanoseconds > found.running + kWorth) {
    const Known& here = known(0);
    found.ready = std::min(since(ready_, here.ready), nanoseconds - found.running);
    found.bytes = since(bytes_, here.bytes);
  }
  return found;
}

std::uint64_t ThreadClock::ready_now() noexcept {
  return ready_of(UniqueFd(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)).get());
}

std::uint64_t ThreadClock::ready_of(int statistics) noexcept {
  std::array<char, 80> text{};
  unsigned long long running = 0, ready = 0;
  if (::pread(statistics, text.data(), text.size() - 1, 0) <= 0) return 0;
  return std::sscanf(text.data(), "%llu %llu", &running, &ready) == 2 ? ready : 0;
}

std::uint64_t ThreadClock::running_now() noexcept {
  timespec ran{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ran);
  return static_cast<std::uint64_t>(ran.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(ran.tv_nsec);
}

}  // namespace penstock
