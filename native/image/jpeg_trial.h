// Whether jpeg/ serves in the place of libjpeg: it gives the same pixels, and gives them faster.
//
// jpeg/ computes what libjpeg-turbo's SIMD code for x86-64 does. Another libjpeg, one without that code, a processor for
// which it has other code, or a compiler that is wrong may differ. Where there are no vectors of 256 bits, jpeg/ is slower.
//
// Threads: any. Memory: some 100 KB during the first call.
#pragma once

namespace penstock {

// Found out once in a process, in some two milliseconds, by small images that are difficult: each sampling, flat and noisy
// blocks, restart markers, and coefficients that no encoder writes. False too where they cannot be made.
[[nodiscard]] bool own_jpeg_serves() noexcept;

}  // namespace penstock
