"""What `penstock._native_testing` holds; a module that imports from here is skipped where that was not built."""

import pytest

try:
    from penstock._native_testing import (
        SampleFile,
        TensorReader,
        crc32_by,
        crc32_ways,
        crc32c_by,
        crc32c_ways,
        parse_tensor,
        probe,
        resize,
        resize_needed,
    )
except ModuleNotFoundError:
    pytest.skip("wheels leave out penstock._native_testing: install in place (make setup)", allow_module_level=True)

__all__ = [
    "SampleFile",
    "TensorReader",
    "crc32_by",
    "crc32_ways",
    "crc32c_by",
    "crc32c_ways",
    "parse_tensor",
    "probe",
    "resize",
    "resize_needed",
]
