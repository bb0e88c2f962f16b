// The bare limit of decoding JPEG files that lie in memory: libjpeg-turbo's ISLOW and fancy upsampling, a box of each.
#include "gather.h"
#include "libjpeg.h"

// File i is the bytes from begins[i] to begins[i + 1] - 1 of `data`; boxes: left, top, width and height of each, no width:
// the whole image. Gives the images decoded.
extern "C" long jpeg(const std::int64_t* order, long n, long batch, long threads, const std::uint8_t* data,
                     const std::int64_t* begins, const std::int64_t* boxes) {
    static bare::Buffers buffers;
    std::vector<std::vector<std::uint8_t>> lines(static_cast<std::size_t>(threads));
    return bare::run(buffers, n, batch, 1, threads, [&](long thread, long i, std::uint8_t*) {
        const std::int64_t one = order[i], *const box = boxes + 4 * one;
        const auto part = [&](unsigned width, unsigned height) {
            if (box[2] == 0) return bare::Box{0, 0, width, height};
            return bare::Box{static_cast<unsigned>(box[0]), static_cast<unsigned>(box[1]),
                             static_cast<unsigned>(box[2]), static_cast<unsigned>(box[3])};
        };
        const auto size = static_cast<std::size_t>(begins[one + 1] - begins[one]);
        return bare::decode(data + begins[one], size, lines[thread], part);
    });
}
