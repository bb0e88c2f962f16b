#include "pool/cpu_share.h"

#include <fcntl.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "files/thread_clock.h"
#include "pool/block_signals.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLook{20}, kWake{1};
constexpr int kKept = 10;  // looks for which it continues behind one that has seen a wait
constexpr std::uint64_t kShare = 20;  // one part in so many of the time is much

}  // namespace

ReadyClock::ReadyClock() noexcept
    : statistics_(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)),
      looked_(Clock::now()),
      waited_(ThreadClock::ready_of(statistics_.get())) {}

bool ReadyClock::is_old() const noexcept { return Clock::now() - looked_ >= kLook; }

bool ReadyClock::waits() noexcept {
  const Clock::time_point before = std::exchange(looked_, Clock::now());
  const auto passed = static_cast<std::uint64_t>(std::chrono::nanoseconds(looked_ - before).count());
  const std::uint64_t waited = ThreadClock::ready_of(statistics_.get());
  return waited - std::exchange(waited_, waited) > passed / kShare;
}

// The thread that wakes.
class CpuShare::Waker {
 public:
  explicit Waker(ReadyClock& clock) : clock_(clock) {
    const BlockSignals blocked;
    thread_ = std::thread(&Waker::run, this);
  }

  ~Waker() {
    {
      const std::scoped_lock held(mutex_);
      ending_ = true;
    }
    ends_.notify_one();
    thread_.join();
  }
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;

 private:
  void run() noexcept {
    std::unique_lock held(mutex_);
    int left = kKept;
    while (!ending_) {
      ends_.wait_for(held, left > 0 ? kWake : kLook);
      if (clock_.is_old()) left = clock_.waits() ? kKept : left - (left > 0);
    }
  }

  ReadyClock& clock_;  // this thread's from now on
  std::mutex mutex_;
  std::condition_variable ends_;
  bool ending_ = false;
  std::thread thread_;
};

CpuShare::CpuShare() noexcept : process_(::getpid()) {}

CpuShare::~CpuShare() {
  // A condition variable that a lost thread waits for cannot be destroyed.
  if (::getpid() != process_) static_cast<void>(waker_.release());
}

void CpuShare::look() {
  if (waker_ != nullptr || !clock_.is_old() || !clock_.waits()) return;
  try {
    waker_ = std::make_unique<Waker>(clock_);
  } catch (const std::system_error&) {  // the system has no more threads: the next look tries again
  }
}

}  // namespace penstock
