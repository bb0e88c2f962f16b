"""What is told of loaders: their module calls these functions, and imports none of the modules above it.

penstock.frameworks adds its own when `import penstock` imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Called with each penstock.DataLoader that was made here, or that has come from another process.
made: list[Callable[[Any], object]] = []
#: Called with a loader from whose attributes Accelerate is to build another one. Raises InvalidOption.
copied: list[Callable[[Any], object]] = []
#: Called with a LoopMeter and the time, by time.perf_counter(), where CPU times are read; it raises nothing.
looked: list[Callable[[Any, float], object]] = []
