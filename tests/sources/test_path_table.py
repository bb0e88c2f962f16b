"""Path tables: compact names, and no way out of their root folder."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

import penstock._native as _native
from tests.resources import open_files

pytestmark = pytest.mark.native


@pytest.fixture(params=["openat2", "components"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to open a file beneath a folder, which table() obeys."""
    if request.param == "components":
        testing = pytest.importorskip(
            "penstock._native_testing", reason="wheels leave out penstock._native_testing: install in place"
        )
        monkeypatch.setattr(sys.modules[__name__], "prepare", testing.forgo_openat2)


def prepare(made: _native.PathTable) -> None:
    """Set up a table as `way` wants it."""


def read(paths: _native.PathTable, index: int = 0) -> bytes:
    with os.fdopen(paths.open(index), "rb") as file:
        return file.read()


def table(root: Path, *names: str, suffix: str = "", beneath: bool = True) -> _native.PathTable:
    made = _native.PathTable(os.fsencode(root), joined(*names), os.fsencode(suffix), beneath)
    prepare(made)
    return made


def joined(*names: str | bytes) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """box/ holds files and links; secret lies beside it."""
    root = tmp_path / "box"
    for name in ("secret", "box2/secret", "box/one.pt", "box/sub/deep/two.pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((tmp_path / name).stem.encode())
    links: dict[str, str | Path] = {
        "relative": "one.pt", "absolute": root / "one.pt", "folder": "sub", "absolute_folder": root / "sub",
        "sub/up": "../one.pt", "out_and_in": "../box/one.pt", "out": "../secret", "absolute_out": tmp_path / "secret",
        "folder_out": "..", "absolute_folder_out": tmp_path, "neighbour": "../box2", "loop": "loop", "gone": "nowhere",
        "chain": "absolute", "chain_out": "absolute_out", "proc": f"/proc/self/root{tmp_path}/secret",
    }  # fmt: skip
    for name, target in links.items():
        (root / name).symlink_to(target)
    return root


@pytest.mark.usefixtures("way")
class TestBeneath:
    @pytest.mark.parametrize("name", [
        "one.pt", "./one.pt", "sub//deep/two.pt", "relative", "absolute", "chain", "sub/up",
        "out_and_in", "folder/deep/two.pt", "absolute_folder/deep/two.pt", "folder/up",
    ])  # fmt: skip
    def test_inside_is_opened(self, box: Path, name: str) -> None:
        assert read(table(box, name)) == (box / name).read_bytes()

    @pytest.mark.parametrize("name", [
        "out", "absolute_out", "chain_out", "folder_out/secret", "absolute_folder_out/secret", "neighbour/secret",
        "proc",
    ])  # fmt: skip
    def test_outside_is_refused(self, box: Path, name: str) -> None:
        with pytest.raises(PermissionError, match="leads out of the root folder"):
            table(box, name).open(0)
        assert read(table(box, name, beneath=False)) == b"secret"

    def test_other_errors_are_the_systems(self, box: Path) -> None:
        for name, error in {
            "missing": FileNotFoundError, "gone": FileNotFoundError, "missing/x": FileNotFoundError,
            "one.pt/x": NotADirectoryError, "relative/x": NotADirectoryError, "loop": OSError, "x" * 300: OSError,
        }.items():  # fmt: skip
            with pytest.raises(error) as caught:
                table(box, name).open(0)
            assert caught.value.filename == str(box / name)

    def test_suffix_and_a_link_as_root(self, box: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "link").symlink_to(box)
        assert read(table(tmp_path / "link", "one", suffix=".pt")) == b"one"
        assert read(table(tmp_path / "link", "absolute")) == b"one"
        monkeypatch.chdir(tmp_path)
        paths = table(Path("box"), "x", "sub/deep/two", "absolute", suffix=".pt")
        monkeypatch.chdir("/")  # the folder of construction holds
        assert read(paths, 1) == b"two"
        (box / "absolute.pt").symlink_to(box / "one.pt")
        assert read(paths, 2) == b"one"
        assert paths.path(1) == b"box/sub/deep/two.pt"
        assert read(table(Path("/"), str(box / "one.pt")[1:])) == b"one"
        with pytest.raises(PermissionError):
            table(box / "sub", ".", suffix=".").open(0)

    def test_no_descriptor_leaks(self, box: Path) -> None:
        before = open_files()
        names = ["one.pt", "sub/deep/two.pt", "absolute", "out", "loop", "missing/x", "absolute_folder/deep/no"]
        paths = table(box, *names)
        for index in [*range(len(paths))] * 3:
            with contextlib.suppress(OSError):
                os.close(paths.open(index))
        assert [path for _, path in open_files() - before] == [str(box)]  # the root
        del paths
        assert open_files() - before == set()


@pytest.mark.parametrize("name", ["", "/etc/passwd", "..", "../x", "a/../x", "a/..", "a/b/.."])
def test_names_that_leave_the_root_as_written(tmp_path: Path, name: str) -> None:
    names = [b"good", b"..good", b"a..", b"a/..b", b"...", b"a/.../b"] * 4000
    assert _native.first_bad_name(joined(*names)) is None
    for position in (0, 1, 11_111, len(names) - 1, len(names)):
        assert _native.first_bad_name(joined(*names[:position], name, *names[position:])) == position
    with pytest.raises(ValueError, match="name 1 is empty, absolute or has a component"):
        table(tmp_path, "good", name)
    assert len(table(tmp_path, "good", name, beneath=False)) == 2


@settings(max_examples=200)
@given(st.lists(st.text(st.sampled_from("./a"), max_size=5), max_size=6))
def test_first_bad_name_is_the_first(names: list[str]) -> None:
    bad = [not name or name[0] == "/" or ".." in name.split("/") for name in names]
    assert _native.first_bad_name(joined(*names)) == (bad.index(True) if any(bad) else None)


def test_table_holds_what_it_was_given(tmp_path: Path) -> None:
    names = [f"{'x' * (i % 40)}{i}" for i in range(200_000)]
    paths = table(tmp_path, *names, suffix=".pt")
    assert len(paths) == len(names)
    for index in (0, 1, 65_535, 65_536, 131_072, 199_999):
        assert paths.name(index) == names[index].encode()
        assert paths.path(index) == os.fsencode(tmp_path / f"{names[index]}.pt")
    again = pickle.loads(pickle.dumps(paths))
    assert again.__getstate__() == (os.fsencode(tmp_path), paths.names(), b".pt", True)
    for outside in (200_000, 1 << 62):
        with pytest.raises(IndexError):
            paths.open(outside)


def test_table_without_a_root_and_with_one_that_comes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.jpg").touch()
    monkeypatch.chdir(tmp_path)
    paths = _native.PathTable(b"", b"x.jpg\0" + os.fsencode(tmp_path / "x.jpg") + b"\0")
    assert read(paths, 0) == read(paths, 1) == b""
    assert [paths.path(0), paths.path(1)] == [b"x.jpg", os.fsencode(tmp_path / "x.jpg")]
    assert _native.PathTable(b"/r", b"/x\0", b".y").path(0) == b"/x.y"
    assert _native.PathTable(b"/r/", b"x\0").path(0) == b"/r/x"
    later = table(tmp_path / "later", "x")
    with pytest.raises(FileNotFoundError):
        later.open(0)
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "x").touch()
    assert read(later) == b""


@pytest.mark.parametrize("arguments", [
    (b"/r", b"x", b"", False), (b"/r", b"x\0y", b"", False), (b"/r\0", b"x\0", b"", False),
    (b"/r", b"x\0", b"\0", False), (b"", b"x\0", b"", True), (b"/r", b"x\0", b"/../y", True),
])  # fmt: skip
def test_tables_that_make_no_sense(arguments: tuple[bytes, bytes, bytes, bool]) -> None:
    with pytest.raises(ValueError, match=r"NUL|suffix|root"):
        _native.PathTable(*arguments)


def test_paths_of_any_length(tmp_path: Path) -> None:
    for length, suffix, beneath in product((4094, 4095, 4096, 5000), ("", ".pt"), (False, True)):
        with pytest.raises(OSError, match=r"too long|No such file"):
            table(tmp_path, "x/" * (length // 2) + "y" * (length % 2), suffix=suffix, beneath=beneath).open(0)


def test_list_folder(tmp_path: Path) -> None:
    for name in ("b.pt", "a.pt", "a-b.pt", "é.pt", "\udcff.pt", ".pt", "x.npy", "B.pt"):
        (tmp_path / name).touch()
    (tmp_path / "folder.pt").mkdir()
    (tmp_path / "link.pt").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo.pt")
    names = sorted([b"b", b"a", b"a-b", "é".encode(), b"\xff", b"B", b"link"])
    assert _native.list_folder(os.fsencode(tmp_path), b".pt") == joined(*names)
    assert _native.list_folder(os.fsencode(tmp_path), b".none") == b""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        _native.list_folder(os.fsencode(tmp_path / "nowhere"), b"")
