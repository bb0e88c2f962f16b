// The bare limit of reading whole files through io_uring: one thread, so many files under way, each a chain of openat,
// read and close on a registered slot. Nothing is done with the bytes. Source: io_uring(7), io_uring_enter(2).
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <vector>

namespace {

class Descriptor {
  public:
    explicit Descriptor(int value) : value_(value) {}
    ~Descriptor() {
        if (value_ >= 0) close(value_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return value_; }

  private:
    int value_;
};

// Memory that is shared with the kernel, unmapped at the end.
class Mapping {
  public:
    Mapping(int descriptor, std::size_t bytes, std::uint64_t offset)
        : bytes_(bytes),
          start_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor,
                      static_cast<off_t>(offset))) {}
    ~Mapping() {
        if (start_ != MAP_FAILED) munmap(start_, bytes_);
    }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    bool made() const { return start_ != MAP_FAILED; }
    template <typename T>
    T* at(std::uint32_t offset) const {
        return reinterpret_cast<T*>(static_cast<char*>(start_) + offset);
    }

  private:
    std::size_t bytes_;
    void* start_;
};

constexpr unsigned kSteps = 3;  // openat, read, close

std::uint32_t acquire(std::uint32_t* word) { return std::atomic_ref(*word).load(std::memory_order_acquire); }
void release(std::uint32_t* word, std::uint32_t value) {
    std::atomic_ref(*word).store(value, std::memory_order_release);
}

}  // namespace

// As cold_files; depth: files under way, at most 1,024. Gives -1 where io_uring is not allowed here.
extern "C" long cold_files_in_ring(const std::int64_t* order, long n, long depth, const char* folder, const char* names,
                                   long stride, long bytes) {
    const Descriptor root(open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (root.get() < 0 || depth < 1 || depth > 1024) return -1;
    io_uring_params parameters{};
    const auto slots = static_cast<unsigned>(depth);
    const Descriptor ring(static_cast<int>(syscall(SYS_io_uring_setup, slots * kSteps, &parameters)));
    if (ring.get() < 0 || !(parameters.features & IORING_FEAT_SINGLE_MMAP)) return -1;
    const std::vector<int> empty(slots, -1);
    if (syscall(SYS_io_uring_register, ring.get(), IORING_REGISTER_FILES, empty.data(), slots) < 0) return -1;
    // What blocks goes to threads of the kernel: four a core at the most where nothing else is said.
    unsigned workers[2] = {slots, slots};
    syscall(SYS_io_uring_register, ring.get(), IORING_REGISTER_IOWQ_MAX_WORKERS, workers, 2);
    const auto& in = parameters.sq_off;
    const auto& out = parameters.cq_off;
    const std::size_t rings = std::max<std::size_t>(in.array + parameters.sq_entries * sizeof(std::uint32_t),
                                                    out.cqes + parameters.cq_entries * sizeof(io_uring_cqe));
    const Mapping shared(ring.get(), rings, IORING_OFF_SQ_RING);
    const Mapping entries(ring.get(), parameters.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
    if (!shared.made() || !entries.made()) return -1;

    std::vector<std::uint8_t> room(slots * static_cast<std::size_t>(bytes));
    std::uint32_t tail = *shared.at<std::uint32_t>(in.tail);
    const std::uint32_t mask = *shared.at<std::uint32_t>(in.ring_mask);
    const auto push = [&](unsigned slot, unsigned step, const io_uring_sqe& entry) {
        const std::uint32_t place = tail++ & mask;
        io_uring_sqe& written = entries.at<io_uring_sqe>(0)[place];
        written = entry;
        written.user_data = slot * kSteps + step;
        shared.at<std::uint32_t>(in.array)[place] = place;
    };
    long next = 0, done = 0, ended = 0;
    const auto begin = [&](unsigned slot) {
        io_uring_sqe entry{};
        entry.opcode = IORING_OP_OPENAT;
        entry.fd = root.get();
        entry.addr = reinterpret_cast<std::uintptr_t>(names + order[next++] * stride);
        entry.open_flags = O_RDONLY;
        entry.file_index = slot + 1;
        entry.flags = IOSQE_IO_LINK;
        push(slot, 0, entry);
        entry = {};
        entry.opcode = IORING_OP_READ;
        entry.fd = static_cast<int>(slot);
        entry.addr = reinterpret_cast<std::uintptr_t>(&room[slot * static_cast<std::size_t>(bytes)]);
        entry.len = static_cast<std::uint32_t>(bytes);
        entry.flags = IOSQE_FIXED_FILE | IOSQE_IO_HARDLINK;  // the read is short, and the file is closed all the same
        push(slot, 1, entry);
        entry = {};
        entry.opcode = IORING_OP_CLOSE;
        entry.file_index = slot + 1;
        push(slot, 2, entry);
    };
    unsigned waiting = 0;
    for (unsigned slot = 0; slot < slots && next < n; ++slot) {
        begin(slot);
        waiting += kSteps;
    }
    std::uint32_t* const seen = shared.at<std::uint32_t>(out.head);
    const std::uint32_t out_mask = *shared.at<std::uint32_t>(out.ring_mask);
    while (ended < n) {
        release(shared.at<std::uint32_t>(in.tail), tail);
        const long taken = syscall(SYS_io_uring_enter, ring.get(), waiting, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
        if (taken < 0) {
            if (errno == EINTR) continue;
            return -1;
        }
        waiting -= static_cast<unsigned>(taken);
        std::uint32_t head = *seen;
        for (const std::uint32_t last = acquire(shared.at<std::uint32_t>(out.tail)); head != last; ++head) {
            const io_uring_cqe& event = shared.at<io_uring_cqe>(out.cqes)[head & out_mask];
            const auto step = static_cast<unsigned>(event.user_data % kSteps);
            if (step == 1 && event.res > 0) ++done;
            if (step != kSteps - 1) continue;
            ++ended;
            if (next == n) continue;
            begin(static_cast<unsigned>(event.user_data / kSteps));
            waiting += kSteps;
        }
        release(seen, head);
    }
    return done;
}
