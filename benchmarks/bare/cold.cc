// The bare limit of reading whole files, by so many threads: openat, pread, close. Nothing is done with the bytes.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gather.h"

// names: n C strings of `stride` bytes each; order: which file, when; bytes: at least those of the largest file.
// Gives the files read, -1 when the folder cannot be opened.
extern "C" long cold_files(const std::int64_t* order, long n, long depth, const char* folder, const char* names,
                           long stride, long bytes) {
    const int root = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) return -1;
    std::atomic<long> next{0}, done{0};
    const auto read_files = [&] {
        const std::unique_ptr<std::uint8_t[]> room(new std::uint8_t[static_cast<std::size_t>(bytes)]);
        for (long i = next++; i < n; i = next++) {
            const int file = openat(root, names + order[i] * stride, O_RDONLY | O_CLOEXEC);
            if (file < 0) continue;
            if (pread(file, room.get(), static_cast<std::size_t>(bytes), 0) > 0) ++done;
            close(file);
        }
    };
    std::vector<std::thread> threads;
    for (long i = 0; i < depth; ++i) threads.emplace_back(read_files);
    for (std::thread& thread : threads) thread.join();
    close(root);
    return done;
}
