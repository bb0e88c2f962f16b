"""A view on the terminal that is drawn over itself, by rich, where that is installed."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from penstock.insight.live_view import Line, Tone

try:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text
except ImportError:
    Console = Live = Text = None  # type: ignore[assignment,misc]

_STYLES = {Tone.PLAIN: "", Tone.HEADING: "bold", Tone.GOOD: "green", Tone.BAD: "red", Tone.FAINT: "dim"}


class _LiveView:
    """Lines on the terminal; the last ones stay when it is left."""

    def __init__(self) -> None:
        self._live = Live(console=Console(highlight=False), auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> _LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, lines: Sequence[Line]) -> None:
        """Put lines in the place of those before. Their text is taken as it is, without rich's markup."""
        text = Text(no_wrap=True, overflow="ellipsis")
        for line in lines:
            text.append(f"{line.text}\n", style=_STYLES[line.tone])
        self._live.update(text, refresh=True)


#: None: rich is not installed.
LiveView: type[_LiveView] | None = None if Live is None else _LiveView
