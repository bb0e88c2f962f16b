// What the bare limits of JPEG share: libjpeg-turbo's decoding of a box of an image, as fast as it goes.
// Threads: functions are independent of each other. Memory: the caller's.
#pragma once

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <jpeglib.h>

namespace bare {

struct Errors {
    jpeg_error_mgr base;
    std::jmp_buf back;
};

struct Box {
    unsigned left, top, width, height;
};

// Decodes the rows of the box that draw(width, height) returns into `line`, one after the other; false when libjpeg
// refuses the file.
template <typename Draw>
bool decode(const std::uint8_t* bytes, std::size_t size, std::vector<std::uint8_t>& line, Draw draw) {
    jpeg_decompress_struct jpeg;
    Errors errors;
    jpeg.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = [](j_common_ptr common) { std::longjmp(reinterpret_cast<Errors*>(common->err)->back, 1); };
    errors.base.output_message = [](j_common_ptr) {};
    jpeg_create_decompress(&jpeg);
    if (setjmp(errors.back)) {
        jpeg_destroy_decompress(&jpeg);
        return false;
    }
    jpeg_mem_src(&jpeg, bytes, size);
    jpeg_read_header(&jpeg, TRUE);
    jpeg.out_color_space = jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&jpeg);
    const Box box = draw(jpeg.output_width, jpeg.output_height);
    JDIMENSION left = box.left, width = box.width;
    if (width < jpeg.output_width) jpeg_crop_scanline(&jpeg, &left, &width);
    const std::size_t row = static_cast<std::size_t>(jpeg.output_width) * jpeg.output_components;
    if (line.size() < row * box.height) line.resize(row * box.height);
    if (box.top > 0) jpeg_skip_scanlines(&jpeg, box.top);
    std::uint8_t* out = line.data();
    for (unsigned y = 0; y < box.height; ++y, out += row) jpeg_read_scanlines(&jpeg, &out, 1);
    jpeg_abort_decompress(&jpeg);
    jpeg_destroy_decompress(&jpeg);
    return true;
}

}  // namespace bare
