"""The report: one page that needs nothing from outside, whatever the names in it say; opened in a browser."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data

import penstock
from penstock.insight import record
from penstock.insight.loop_rows import Rows
from penstock.insight.recording import Loop, Recording
from penstock.insight.report import page, time_shares
from penstock.observe import Delivery
from tests.data import Made, rows
from tests.insight.html_pages import Page

#: A name that is none of a good citizen.
BAD = "</script><script>document.title='taken'</script><img src=x onerror=\"alert('&')\">\n\x1b[31m\udcff\x00"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a report of two loaders, one of which has a name that is none of a good citizen."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    kind = type(BAD.replace("\x00", "").replace("\udcff", ""), (Made,), {})
    with record(report=file):
        list(penstock.DataLoader(kind(size=64), batch_size=4, num_workers=2, worker_method="thread"))
        list(penstock.DataLoader(rows(), batch_size=4))
    return file.read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_stands_alone(report: str) -> None:
    tags = Page(report).tags
    assert {tag for tag, _ in tags}.isdisjoint({"script", "link", "iframe", "object", "img", "base"})
    assert {name for _, found in tags for name in found}.isdisjoint({"src", "href", "xlink:href", "onerror", "onload"})
    assert "url(" not in report and "@import" not in report and "http" not in re.sub("http-equiv", "", report)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": policy}) in tags
    assert "\x1b" not in report and "\x00" not in report


def test_the_page_says_what_was_recorded(report: str) -> None:
    text = Page(report).text
    for words in (
        "Loader 1: penstock.DataLoader(</script>",
        "Loader 2: penstock.DataLoader(TensorDataset, batch_size=4",
        *("Your loop waited", "16 batches, 64 samples, 1 pass", "getitem", "collate"),
        *("What explain() says", "plan     ", "Samples a second"),
    ):
        assert words in text


def test_the_page_begins_with_what_to_do(report: str) -> None:
    todo = Page(report).text.partition("What to do")[2].partition("Loader 1: ")[0]
    lines = re.findall(r"^(tests/insight/test_report\.py:\d+): .+\.$", todo, re.MULTILINE)
    assert len(set(lines)) == 2
    with record() as made:
        loader, line = torch.utils.data.DataLoader(rows(), 4), inspect.currentframe().f_lineno  # type: ignore[union-attr]
        list(loader)
    text = Page(page(made, {})).text
    assert f"tests/insight/test_report.py:{line}: " in text.partition("What to do")[2]
    assert "What the workers spent in each stage is not known: torch's count none." in text and "getitem" not in text


def test_text_keeps_its_size_on_a_phone(report: str) -> None:
    tags = Page(report).tags
    assert {found["preserveaspectratio"] for tag, found in tags if tag == "svg"} == {"none"}
    assert "text" not in {tag for tag, _ in tags}  # in a chart it would shrink
    assert min(map(int, re.findall(r"font(?:-size)?: (\d+)px", report))) >= 12
    assert "white-space: pre-wrap" in report and ".table { overflow-x: auto; }" in report
    assert re.search(r"@media \(max-width: 40rem\) {.*\.stages td, .* { white-space: normal;", report, re.DOTALL)
    assert "width=device-width" in report and "prefers-color-scheme: dark" in report


def test_a_run_without_loaders_has_a_report(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    with record(report=file):
        iter(penstock.DataLoader(rows()))
    text = Page(file.read_text(encoding="utf-8")).text
    assert "no batch came from penstock.DataLoader(TensorDataset" in text
    with record(report=file):
        pass
    assert "No loop over a loader was seen" in file.read_text(encoding="utf-8")


def recorded_rows(*made: tuple[Any, ...], samples: int = 0) -> tuple[Recording, Loop]:
    """Return a recording from 0 to 100 s of one loop with these rows."""
    recording = Recording()
    recording.observe(penstock.DataLoader(rows()))
    recording.began, recording.ended = 0.0, 100.0
    (recorded,) = recording.all_loops()
    recorded.rows, recorded.samples = Rows(), samples
    for row in made:
        recorded.rows.add(*row)
        recorded.meter.add(row[1][0], row[1][2], 0)
    return recording, recorded


def test_time_is_divided_where_it_was_spent() -> None:
    _, recorded = recorded_rows(
        (2.0, (2.0, 2.0, 0.0, 4, 1), 1, 1), (6.0, (3.0, 0.0, 1.0, 4, 1), 1, 2), (8.0, (0.0, 0.0, 2.0, 0, 0), 1, 2)
    )
    shares = time_shares(recorded, 0.0, 10.0, 10)
    for found, wanted in (
        (shares.first_waited, [1, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
        (shares.waited, [0, 0, 0, 1, 1, 1, 0, 0, 0, 0]),
        (shares.worked, [0, 0, 1, 0, 0, 0, 1, 1, 0, 0]),
        (shares.samples, [2, 2, 1, 1, 1, 1, 0, 0, 0, 0]),
        (shares.batches, [0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0, 0, 0, 0]),
    ):
        assert found == pytest.approx(wanted)


def test_passes_side_by_side_keep_their_sums() -> None:
    made = [(t + 1, (0.25, 0.0, 0.75, 1, 1), number, 1) for t in map(float, range(100)) for number in (1, 2)]
    shares = time_shares(recorded_rows(*made)[1], 0.0, 100.0, 7)
    assert (shares.waited.sum(), shares.worked.sum()) == pytest.approx((50, 150))
    assert shares.samples.sum() == 200


@pytest.mark.parametrize("every", [1, 20])
def test_rates_are_those_of_the_batches_while_the_loop_runs(every: int) -> None:
    """The loop begins in the middle, and gets a batch of 8 samples every so many seconds."""
    made = [(50.0 + t + every, (every / 4, 0.0, every * 0.75, 8, 1), 1, 1) for t in range(0, 50 - every + 1, every)]
    text = page(recorded_rows(*made, samples=8 * len(made))[0], {})
    found = re.findall(r">([\d.]+) samples/s, ([\d.]+) s after", text)
    assert {float(rate) for rate, _ in found} == {8 / every} and min(float(at) for _, at in found) == 50


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


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium")
def test_the_report_opens_in_a_browser(report: str, tmp_path: Path) -> None:
    assert BROWSER is not None
    picture, file = tmp_path / "report.png", tmp_path / "report.html"
    file.write_text(report, encoding="utf-8")
    options = ["--headless", "--disable-gpu", "--no-sandbox", f"--user-data-dir={tmp_path / 'profile'}"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=2000", "--enable-logging=stderr"]
    options += ["--dump-dom", f"--screenshot={picture}", "--window-size=1000,1600"]
    done = subprocess.run([BROWSER, *options, file.as_uri()], capture_output=True, timeout=110, check=True)
    assert b"CONSOLE" not in done.stderr  # where the browser says what a page did wrong
    dom = done.stdout.decode()
    assert "<title>Penstock report" in dom and "taken</title>" not in dom
    assert dom.count("<svg") == report.count("<svg") >= 4
    assert "<script" not in dom and "<img" not in dom
    assert picture.stat().st_size > 10_000
