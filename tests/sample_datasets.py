"""The names of tests/data.py, as tests of executors still import them."""

from tests.data import Doubling, Drawing, Made, Numbers, Opening, Order, Placed, Stream, Whole, rows, tensor_files

__all__ = [
    "Doubling", "Drawing", "Made", "Numbers", "Opening", "Order", "Placed", "Stream", "Whole", "rows", "tensor_files",
]  # fmt: skip
