#include "files/tick_clock.h"

#include <cstdio>
#include <cstring>
#include <memory>

namespace penstock {
namespace {

// Whether the counters of all processors are one clock: Linux looks whether they are, all the time.
bool linux_counts_cycles() noexcept {
#if defined(__x86_64__)
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re"), std::fclose);
  char name[8] = {};
  return file && std::fgets(name, sizeof name, file.get()) != nullptr && std::strcmp(name, "tsc\n") == 0;
#else
  return false;
#endif
}

constexpr std::uint64_t kLeastMeasured = 5'000'000;  // nanoseconds: a reading is wrong by some tens of them

}  // namespace

const bool TickClock::counts_cycles_ = linux_counts_cycles();
const TickClock::Readings TickClock::loaded_{now(), steady()};

double TickClock::measured() noexcept {
  const Readings first = loaded_;
  Readings last{};
  do last = {now(), steady()};
  while (last.nanoseconds - first.nanoseconds < kLeastMeasured);  // over at once, but just after loading
  return static_cast<double>(last.nanoseconds - first.nanoseconds) / static_cast<double>(last.ticks - first.ticks);
}

}  // namespace penstock
