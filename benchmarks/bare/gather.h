// What the bare limits share: a pool-free loop over batches on a few threads, and the buffers that they fill.
// Threads: each call runs its own threads and joins them; one call at a time.
// Memory: the buffers are kept from call to call, as a loader recycles its own; nothing is handed out.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace bare {

constexpr long kBuffers = 8;  // batches in flight, as a loader keeps with 2 workers

// A batch's buffer: 64-byte aligned, grown when needed.
class Buffers {
 public:
    void reserve(std::size_t bytes) {
        if (bytes <= bytes_) return;
        bytes_ = (bytes + 63) / 64 * 64;
        for (auto& buffer : buffers_) {
            buffer.reset(static_cast<std::uint8_t*>(std::aligned_alloc(64, bytes_)));
        }
    }
    std::uint8_t* of(long batch) { return buffers_[batch % kBuffers].get(); }

 private:
    struct Free {
        void operator()(std::uint8_t* memory) const { std::free(memory); }
    };
    std::unique_ptr<std::uint8_t, Free> buffers_[kBuffers];
    std::size_t bytes_ = 0;
};

// fill(thread, sample_position, row) for every position in [0, n), whole batches per thread; gives the samples filled.
template <typename Fill>
long run(Buffers& buffers, long n, long batch, std::size_t row_bytes, long threads, Fill fill) {
    buffers.reserve(row_bytes * static_cast<std::size_t>(batch));
    std::atomic<long> next{0};
    std::atomic<long> filled{0};
    auto work = [&](long thread) {
        long mine = 0;
        for (long b = next++; b * batch < n; b = next++) {
            std::uint8_t* row = buffers.of(b);
            const long end = (b + 1) * batch < n ? (b + 1) * batch : n;
            for (long i = b * batch; i < end; ++i, row += row_bytes) mine += fill(thread, i, row) ? 1 : 0;
        }
        filled += mine;
    };
    std::vector<std::thread> others;
    for (long t = 1; t < threads; ++t) others.emplace_back(work, t);
    work(0);
    for (auto& other : others) other.join();
    return filled;
}

}  // namespace bare
