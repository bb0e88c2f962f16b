// The bare limit of reading packed samples: pread at a known offset of an open file, then a copy into the row.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "gather.h"

// names: n C strings of `stride` bytes each, of the shards; shard, offset: where each sample's elements begin; order:
// which sample, when. Gives the samples read, -1 when a shard cannot be opened.
extern "C" long shards(const std::int64_t* order, long n, long batch, long threads, const char* names, long stride,
                       long count, const std::int64_t* shard, const std::int64_t* offset, long row_bytes) {
    static bare::Buffers buffers;
    std::vector<int> files;
    for (long i = 0; i < count; ++i) files.push_back(open(names + i * stride, O_RDONLY | O_CLOEXEC));
    long done = -1;
    if (std::find(files.begin(), files.end(), -1) == files.end())
        done = bare::run(buffers, n, batch, static_cast<std::size_t>(row_bytes), threads,
                         [&](long, long i, std::uint8_t* row) {
                             thread_local std::vector<std::uint8_t> bytes;
                             bytes.resize(static_cast<std::size_t>(row_bytes));
                             const std::int64_t sample = order[i];
                             const ssize_t got = pread(files[static_cast<std::size_t>(shard[sample])], bytes.data(),
                                                       bytes.size(), offset[sample]);
                             std::memcpy(row, bytes.data(), bytes.size());
                             return got == row_bytes;
                         });
    for (const int file : files)
        if (file >= 0) close(file);
    return done;
}
