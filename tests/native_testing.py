"""What `penstock._native_testing` holds; a module that imports from here is skipped where that was not built."""

import pytest

try:
    from penstock._native_testing import (
        JpegRowStates,
        ReadDepth,
        SlowTable,
        TensorReader,
        crc32_by,
        crc32c_by,
        crc_ways,
        decode_jpeg_by,
        jpeg_decoders,
        parse_tensor,
        resize,
        resize_needed,
    )
except ModuleNotFoundError:
    pytest.skip("wheels leave out penstock._native_testing: install in place (make setup)", allow_module_level=True)

__all__ = [
    "JpegRowStates", "ReadDepth", "SlowTable", "TensorReader", "crc32_by", "crc32c_by", "crc_ways",
    "decode_jpeg_by", "jpeg_decoders", "parse_tensor", "resize", "resize_needed",
]  # fmt: skip
