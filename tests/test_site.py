"""The site: every page is in its navigation, it builds without a warning, and a browser shows each page whole."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

import penstock
from tests.browser import Browser, found
from tests.pages import GUIDES, ROOT, blocks_of, name_of, text_of, without_code
from tools import plots

OF_OTHERS = [page for page in GUIDES if page.parent.name in ("start", "from") or page.stem == "compare"]


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"[\w/-]+\.md(?=$)", text_of(ROOT / "mkdocs.yml"), re.MULTILINE)
    made = {"index.md"}  # by tools/docs_site.py
    assert sorted(set(listed) - made) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in GUIDES)


def test_plots_are_drawn_from_the_results() -> None:
    drawn = plots.drawings()
    assert sorted(drawn) == sorted(file.name for file in plots.PLOTS.iterdir())
    assert [name for name, drawing in drawn.items() if text_of(plots.PLOTS / name) != drawing] == []
    shown = re.findall(r"\(plots/([\w-]+\.svg)\)", text_of(ROOT / "docs" / "benchmarks.md"))
    assert sorted(shown) == sorted(drawn)


@pytest.mark.parametrize("page", OF_OTHERS, ids=name_of)
def test_figures_are_those_of_the_results(page: Path) -> None:
    results = text_of(ROOT / "docs" / "results.md")
    figures = re.findall(r"(?<![.\d,])(?:\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?x)(?![\w.]*\d)", without_code(text_of(page)))
    assert [one for one in figures if not re.search(rf"(?<![.\d,]){re.escape(one)}(?![.\d]*\d)", results)] == []


def test_there_are_twenty_mistakes() -> None:
    blocks = list(blocks_of(ROOT / "docs" / "mistakes.md"))
    assert len(blocks) == 20 and all(block.output for block in blocks)


# ---------------------------------------------------------------- built


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site. A warning, such as a dead link or anchor, is an error."""
    pytest.importorskip("material", reason="MkDocs and its theme are not installed: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class Links(HTMLParser):
    """The targets and the anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors = {""}
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name == "srcset" and value:
                self.targets += [one.split()[0] for one in value.split(",")]
            elif name == "id" and value:
                self.anchors.add(value)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_site_has_no_dead_link_and_fetches_nothing(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}  # whose links are absolute
    assert len(pages) >= len(GUIDES)
    dead = []
    for page, links in pages.items():
        for target in links.targets:
            if re.match(r"(https?|mailto):", target):
                continue
            file, _, anchor = unquote(target).partition("#")
            place = (page.parent / file).resolve() if file else page
            place = place / "index.html" if place.is_dir() else place
            if not place.exists() or (place in pages and anchor not in pages[place].anchors):
                dead.append(f"{page.relative_to(site)}: {target}")
    assert dead == []
    loaded = [
        target
        for page in pages
        for target in re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(https?:[^"]*)', text_of(page))
    ]
    assert loaded == []
    listed = re.findall(r"\]\(([^)]+)\)", text_of(site / "llms.txt"))
    assert len(listed) == len(pages)
    assert [name for name in listed if not (site / name).exists()] == []
    api = text_of(site / "api.md")
    assert [name for name in penstock.__all__ if f"`{name}`" not in api] == []
    assert "| `batch_size` | <code>int &#124; None</code> | <code>1</code> |" in api


#: What a page is asked for: its width, the widest thing in it, its scheme, and its smallest text, in pixels.
QUESTION = """(() => {
  const sizes = [...document.querySelectorAll("article *")]
    .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && e.offsetWidth)
    .map(e => parseFloat(getComputedStyle(e).fontSize));
  const root = document.documentElement;
  return [root.clientWidth, root.scrollWidth, document.body.dataset.mdColorScheme, Math.min(...sizes)];
})()"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_browser_shows_every_page(site: Path, tmp_path: Path) -> None:
    program = found()
    if program is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    handler = partial(Quiet, directory=str(site))
    wrong = []
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, Browser(program, tmp_path) as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for scheme, name in (("light", "default"), ("dark", "slate")):
            for page in sorted(site.rglob("*.html")):
                browser.look(1280, scheme)
                browser.open(f"http://127.0.0.1:{server.server_port}/{page.relative_to(site).as_posix()}")
                for width in (1280, 390):
                    browser.look(width, scheme)
                    seen, widest, shown, smallest = browser.value(QUESTION)
                    what = f"{page.relative_to(site)} at {width} px, {scheme}"
                    wrong += [f"{what}: {error}" for error in browser.errors]
                    browser.errors.clear()
                    if widest > seen:
                        wrong.append(f"{what}: {widest} px wide")
                    if shown != name or smallest < 11:
                        wrong.append(f"{what}: scheme {shown}, smallest text {smallest} px")
        server.shutdown()
    assert wrong == [], "\n".join(wrong)


#: Searches for a word as a reader does, and gives the pages that are found.
SEARCH = """(async () => {
  document.querySelector("[data-md-toggle=search]").click();
  const query = document.querySelector("[data-md-component=search-query]");
  query.focus();
  query.value = "quarantine";
  query.dispatchEvent(new Event("keyup", {bubbles: true}));
  query.dispatchEvent(new Event("input", {bubbles: true}));
  for (let turn = 0; turn < 200; turn++) {
    const found = [...document.querySelectorAll(".md-search-result__link")].map(link => link.href);
    if (found.length) return found;
    await new Promise(done => setTimeout(done, 100));
  }
  return [];
})()"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ["index.html", "start/index.html"])
def test_the_search_works_from_a_disk(site: Path, tmp_path: Path, page: str) -> None:
    program = found()
    if program is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with Browser(program, tmp_path) as browser:
        browser.look(1280, "light")
        browser.open((site / page).as_uri())
        links = browser.value(SEARCH)
        assert browser.errors == []
    assert any("bad-samples.html" in link for link in links), links
    assert all(
        Path(unquote(link.partition("#")[0].partition("?")[0].removeprefix("file://"))).exists() for link in links
    )


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass
