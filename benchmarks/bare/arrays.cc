// The bare limits of batches from an array in memory: one gather; one gather with a convert to float planes.
#include <cstring>

#include "gather.h"

// Copies row order[i] of `base` into a batch, for every i.
extern "C" long gather(const std::int64_t* order, long n, long batch, long threads, const std::uint8_t* base,
                       long row_bytes) {
    static bare::Buffers buffers;
    const auto bytes = static_cast<std::size_t>(row_bytes);
    return bare::run(buffers, n, batch, bytes, threads, [&](long, long i, std::uint8_t* row) {
        std::memcpy(row, base + order[i] * row_bytes, bytes);
        return true;
    });
}

#if defined(__x86_64__)
__attribute__((target_clones("avx2", "default")))
#endif
static void to_planes(const std::uint8_t* __restrict pixels, float* __restrict out, long count, const float* scale,
                      const float* shift) {
    for (long c = 0; c < 3; ++c) {
        const float a = scale[c];
        const float b = shift[c];
        for (long p = 0; p < count; ++p) out[c * count + p] = a * static_cast<float>(pixels[3 * p + c]) + b;
    }
}

// Row order[i] of `base` (pixels of 3 bytes) as 3 float planes, value * scale[channel] + shift[channel]. No crop, no flip.
extern "C" long gather_float(const std::int64_t* order, long n, long batch, long threads, const std::uint8_t* base,
                             long pixels, const float* scale, const float* shift) {
    static bare::Buffers buffers;
    const auto bytes = static_cast<std::size_t>(pixels) * 3 * sizeof(float);
    return bare::run(buffers, n, batch, bytes, threads, [&](long, long i, std::uint8_t* row) {
        to_planes(base + order[i] * pixels * 3, reinterpret_cast<float*>(row), pixels, scale, shift);
        return true;
    });
}
