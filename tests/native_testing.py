"""What `penstock._native_testing` holds; a module that imports from here is skipped where that was not built."""

import pytest

try:
    from penstock._native_testing import (
        ReadDepth,
        SampleFile,
        SlowTable,
        TensorReader,
        crc32_by,
        crc32_ways,
        crc32c_by,
        crc32c_ways,
        jpeg_coefficients,
        jpeg_coefficients_by_libjpeg,
        jpeg_row_states,
        load_row_state,
        parse_tensor,
        probe,
        resize,
        resize_needed,
        store_row_state,
    )
except ModuleNotFoundError:
    pytest.skip("wheels leave out penstock._native_testing: install in place (make setup)", allow_module_level=True)

__all__ = [
    "ReadDepth",
    "SampleFile",
    "SlowTable",
    "TensorReader",
    "crc32_by",
    "crc32_ways",
    "crc32c_by",
    "crc32c_ways",
    "jpeg_coefficients",
    "jpeg_coefficients_by_libjpeg",
    "jpeg_row_states",
    "load_row_state",
    "parse_tensor",
    "probe",
    "resize",
    "resize_needed",
    "store_row_state",
]
