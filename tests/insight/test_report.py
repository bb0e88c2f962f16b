"""The report: one page that needs nothing from outside, whatever the names in it say; opened in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.insight import record
from penstock.insight.loop_rows import Rows
from penstock.insight.recording import Loop, Recording
from penstock.insight.report import page, time_shares
from penstock.observe import Delivery
from tests.sample_datasets import Made, rows

#: A name that is none of a good citizen.
BAD = "</script><script>document.title='taken'</script><img src=x onerror=\"alert('&')\">\n\x1b[31m\udcff\x00"


class Page(HTMLParser):
    """The tags of a page, which must be closed as they were opened, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report of two loaders, one of which has a name that is none of a good citizen."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    kind = type(BAD.replace("\x00", "").replace("\udcff", ""), (Made,), {})
    with record(report=file):
        list(penstock.DataLoader(kind(size=64), batch_size=4, num_workers=2, worker_method="thread"))
        list(penstock.DataLoader(rows(), batch_size=4))
    return file


def test_the_page_is_well_formed_and_stands_alone(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    found = Page(text)
    assert {tag for tag, _ in found.tags} & {"script", "link", "iframe", "object", "img", "base"} == set()
    for _, attributes in found.tags:
        assert not attributes.keys() & {"src", "href", "xlink:href", "onerror", "onload"}
    assert "url(" not in text and "@import" not in text and "http" not in re.sub("http-equiv", "", text)
    assert (
        "meta",
        {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"},
    ) in found.tags
    assert "\x1b" not in text and "\x00" not in text


def test_the_page_says_what_was_recorded(report: Path) -> None:
    text = Page(report.read_text(encoding="utf-8")).text
    for words in (
        "Loader 1: penstock.DataLoader(</script>",
        "Loader 2: penstock.DataLoader(TensorDataset, batch_size=4",
        "The consumer waited",
        "16 batches, 64 samples, 1 pass",
    ):
        assert words in text
    for words in ("getitem", "collate", "What explain() says", "plan     ", "Samples a second"):
        assert words in text


def test_a_run_without_loaders_has_a_report(tmp_path: Path) -> None:
    with record(report=tmp_path / "report.html"):
        iter(penstock.DataLoader(rows()))
    text = Page((tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "no batch came from penstock.DataLoader(TensorDataset" in text
    with record(report=tmp_path / "none.html"):
        pass
    assert "No loader was gone through" in (tmp_path / "none.html").read_text(encoding="utf-8")


# --- numbers ----------------------------------------------------------------------------------------------------------


def recorded_rows(*made: tuple[Any, ...]) -> Loop:
    recording = Recording()
    recording.observe(penstock.DataLoader(rows()))
    (recorded,) = recording.all_loops()
    recorded.rows = Rows()
    for row in made:
        recorded.rows.add(*row)
    return recorded


def test_time_is_divided_where_it_was_spent() -> None:
    recorded = recorded_rows(
        (2.0, (2.0, 2.0, 0.0, 4, 1), 1, 1), (6.0, (3.0, 0.0, 1.0, 4, 1), 1, 2), (8.0, (0.0, 0.0, 2.0, 0, 0), 1, 2)
    )
    shares = time_shares(recorded, 0.0, 10.0, 10)
    assert shares.first_waited == pytest.approx([1, 1, 0, 0, 0, 0, 0, 0, 0, 0])
    assert shares.waited == pytest.approx([0, 0, 0, 1, 1, 1, 0, 0, 0, 0])
    assert shares.worked == pytest.approx([0, 0, 1, 0, 0, 0, 1, 1, 0, 0])
    assert shares.samples == pytest.approx([0, 0, 4, 0, 0, 0, 4, 0, 0, 0])
    assert shares.batches == pytest.approx([0, 0, 1, 0, 0, 0, 1, 0, 0, 0])


def test_passes_side_by_side_keep_their_sums() -> None:
    made = [(t + 1, (0.25, 0.0, 0.75, 1, 1), number, 1) for t in map(float, range(100)) for number in (1, 2)]
    shares = time_shares(recorded_rows(*made), 0.0, 100.0, 7)
    assert shares.waited.sum() == pytest.approx(50)
    assert shares.worked.sum() == pytest.approx(150)
    assert shares.samples.sum() == 200


def test_odd_numbers_make_no_odd_page() -> None:
    recording = Recording()
    observer = recording.observe(penstock.DataLoader(rows()))
    assert observer is not None
    observer.delivered(Delivery(None, 0))
    recording.ended = recording.began
    text = page(recording, {})
    Page(text)
    assert not re.search(r"\bnan\b", text.lower())
    assert np.isfinite(time_shares(recording.all_loops()[0], 5.0, 5.0, 4).waited).all()


# --- a real browser ---------------------------------------------------------------------------------------------------

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium")
def test_the_report_opens_in_a_browser(report: Path, tmp_path: Path) -> None:
    assert BROWSER is not None
    picture = tmp_path / "report.png"
    options = ["--headless", "--disable-gpu", "--no-sandbox", f"--user-data-dir={tmp_path / 'profile'}"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=2000", "--enable-logging=stderr"]
    options += ["--dump-dom", f"--screenshot={picture}", "--window-size=1000,1600"]
    done = subprocess.run([BROWSER, *options, report.as_uri()], capture_output=True, timeout=110, check=True)
    assert b"CONSOLE" not in done.stderr  # where the browser says what a page did wrong
    dom = done.stdout.decode()
    assert "<title>Penstock report" in dom and "taken</title>" not in dom
    assert dom.count("<svg") == report.read_text(encoding="utf-8").count("<svg") >= 4
    assert "<script" not in dom and "<img" not in dom
    assert picture.stat().st_size > 10_000
