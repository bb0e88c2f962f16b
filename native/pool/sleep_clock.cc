#include "pool/sleep_clock.h"

#include <sys/resource.h>

#include "files/thread_clock.h"

namespace penstock {
namespace {

// A shorter sleep is not a read of a storage, but a lock of the kernel's.
constexpr double kLeastSleep = 30e-6;

long sleeps_so_far() noexcept {
  rusage usage{};
  return ::getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nvcsw : 0;
}

// The seconds that the calling thread has run, or was ready to run, so far. On a busy machine a thread waits for a
// processor for longer than for a disk.
double awake_so_far() noexcept {
  return static_cast<double>(ThreadClock::running_now() + ThreadClock::ready_now()) / 1e9;
}

}  // namespace

void SleepClock::start() noexcept {
  sleeps_ = sleeps_so_far();
  awake_ = awake_so_far();
  began_ = std::chrono::steady_clock::now();
}

double SleepClock::asleep(double& seconds) const noexcept {
  seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  const long sleeps = sleeps_so_far();
  if (sleeps == sleeps_ && sleeps != 0) return 0;  // a kernel that counts none has 0
  const double asleep = seconds - (awake_so_far() - awake_);
  return asleep > kLeastSleep ? asleep : 0;
}

bool SleepMeter::begin() noexcept {
  if (!meters(samples_++)) return false;
  clock_.start();
  return true;
}

}  // namespace penstock
