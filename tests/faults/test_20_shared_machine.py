"""Row 20: a machine shared with others: umask 000, symbolic links and files that others have put into caches and /tmp.

Penstock's own folders and files have mode 0700 and 0600 under any umask; no link is followed, no other user's file is
read or written, and the batches are right, or UnsafeCache says why. Nothing listens on the network.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.carriers import post_mortem
from penstock.carriers.board import Board
from tests.data import tensor_files
from tests.faults import caches
from tests.faults.caches import Cache
from tests.packing.packed import contents
from tests.python_processes import run

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
STRANGER = 65534
KINDS = [*caches.KINDS, "recordings"]
#: Files of each kind that are there only for a moment, by what the names of those that stay end in.
PASSING = {".shard": ".part", ".npz": ".lock", ".json": ".tmp"}


@pytest.fixture(params=KINDS)
def cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cache]:
    with caches.made(request.param, tmp_path / "data", monkeypatch) as cache:
        yield cache


@pytest.fixture
def any_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def give_away(path: Path) -> None:
    """Make something, not what it links to, another user's."""
    if os.geteuid():
        pytest.skip("only root can give files to another user")
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def assert_private(path: Path) -> int:
    """Assert that nobody else can use a folder, or what is in it; return how many files and folders it has."""
    inside = [path, *path.rglob("*")]
    modes = {str(one): oct(one.lstat().st_mode & 0o777) for one in inside}
    assert {name: mode for name, mode in modes.items() if mode != ("0o700" if os.path.isdir(name) else "0o600")} == {}
    return len(inside)


@pytest.mark.usefixtures("any_umask")
def test_modes(cache: Cache, tmp_path: Path, cases: Callable[[int], None]) -> None:
    assert cache.read(tmp_path / "deep" / "home") == cache.wanted
    cases(assert_private(tmp_path / "deep"))
    assert list((tmp_path / "deep" / "home" / cache.folder).iterdir())


def read_with(cache: Cache, home: Path, words: str) -> None:
    """Read from a home that is not safe: the right batches, or an error where the user has named the folder."""
    before = contents(home)
    try:
        assert cache.read(home) == cache.wanted
        assert not cache.given
    except penstock.UnsafeCache as error:
        assert cache.given and words in str(error) and "give another folder" in str(error)
    after = contents(home)
    assert {name: after.get(name) for name in before} == before


@pytest.mark.parametrize(
    ("how", "words"),
    [("open", "other users can write into"), ("theirs", "belongs to user"), ("linked", "a symbolic link of user")],
)
def test_folders_of_others(how: str, words: str, cache: Cache, tmp_path: Path) -> None:
    folder = tmp_path / "home" / cache.folder
    folder.mkdir(parents=True, mode=0o700)
    (folder / "mine").write_text("mine")
    if how == "open":
        folder.chmod(0o777)
    elif how == "linked":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    if how != "open":
        give_away(folder)
    read_with(cache, tmp_path / "home", words)
    assert [path.name for path in (tmp_path / "elsewhere" if how == "linked" else folder).iterdir()] == ["mine"]


def kept(cache: Cache, home: Path) -> list[Path]:
    """Fill a cache, and return its files, and the names of those that were there for a moment."""
    assert cache.read(home) == cache.wanted
    files = [path for path in (home / cache.folder).iterdir() if not path.name.startswith(".")]
    return files + [path.with_suffix(PASSING[path.suffix]) for path in files if path.suffix in PASSING]


def test_links_in_the_place_of_files(cache: Cache, tmp_path: Path, cases: Callable[[int], None]) -> None:
    """What a link leads to is neither read, written nor cut off."""
    home, victim = tmp_path / "home", tmp_path / "victim"
    files = kept(cache, home)
    for path in files:
        path.unlink(missing_ok=True)
        victim.write_bytes(b"mine")
        path.symlink_to(victim)
        try:
            assert cache.read(home) == cache.wanted
        except penstock.UnsafeCache as error:
            assert cache.given and f"{path.name!r} in the cache folder is a symbolic link" in str(error)
        gc.collect()  # the pass that ended by an error
        assert victim.read_bytes() == b"mine"
        path.unlink(missing_ok=True)
    cases(len(files))


def test_files_of_others(cache: Cache, tmp_path: Path, cases: Callable[[int], None]) -> None:
    home = tmp_path / "home"
    files = [path for path in kept(cache, home) if path.exists()]
    for path in files:
        if not path.exists():  # it made way for other shards
            continue
        give_away(path)
        held = path.read_bytes()
        try:
            assert cache.read(home) == cache.wanted
        except penstock.UnsafeCache as error:
            assert cache.given and f"{path.name!r} in the cache folder is not a file of this user" in str(error)
        gc.collect()  # the pass that ended by an error
        assert not path.exists() or path.stat().st_uid != STRANGER or path.read_bytes() == held
        path.unlink(missing_ok=True)
    cases(len(files))


@pytest.mark.parametrize("whose", ["file", "folder"])
@pytest.mark.parametrize("cache", ["names"], indirect=True)
def test_labels_of_another_user(whose: str, cache: Cache, tmp_path: Path) -> None:
    """The names in an image folder that somebody else has written, with other labels: they fit the tree."""
    (entry,) = kept(cache, tmp_path / "home")[:1]
    with np.load(entry) as file:
        arrays = dict(file)
    np.savez(entry, **{**arrays, "counts": np.array([1, 1, arrays["counts"].sum() - 2])})
    assert cache.read(tmp_path / "home") != cache.wanted, "who may write into the folder is trusted"
    if whose == "file":
        give_away(entry)
    else:
        entry.parent.chmod(0o777)
    assert cache.read(tmp_path / "home") == cache.wanted


def test_links_among_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the removal of dead workers' files meets: links whose names begin as theirs do."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("mine")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(post_mortem, "FOLDER", str(tmp_path))
    board = Board(1)
    for name in (f"{board.folders}-0", "torch_1_2_3"):
        (tmp_path / name).symlink_to(tmp_path / ("victim/file" if name.startswith("torch") else "victim"))
    post_mortem.clear_away(board, [1])
    board.close()
    assert (tmp_path / "victim" / "file").read_text() == "mine"


PROGRAM = """
import json, os, sys
from pathlib import Path
os.umask(0)
import penstock

def offspring(pid):
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from offspring(int(child))

root, temporary, method = sys.argv[1:]
options = {"worker_method": method} if method else {}
with penstock.insight.record(trace=temporary + "/trace.json", report=temporary + "/report.html"):
    batches = iter(penstock.DataLoader(penstock.TensorFolder(root), batch_size=4, num_workers=2, **options))
    next(batches)
    open_files = [file for pid in offspring(os.getpid()) for file in Path(f"/proc/{pid}/fd").iterdir()]
    names = [os.readlink(file) for file in open_files if os.path.lexists(file)]
    files = {str(path): path.lstat().st_mode & 0o777 for path in Path(temporary).iterdir()}
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if f"socket:[{fields[9]}]" in names and fields[3] in ("0A", "07"):  # it listens, or waits for datagrams
                found.append(f"{table} {fields[1]}")
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if f"socket:[{fields[6]}]" in names and int(fields[3], 16) & 0x10000:  # it listens
            found.append(" ".join(fields[7:]))
    left = len(list(batches))
written = {path.name: path.lstat().st_mode & 0o777 for path in Path(temporary).iterdir()}
print(json.dumps([found, files, left, written]))
"""


@pytest.mark.parametrize("method", ["", "thread", "process"])
def test_nothing_listens(method: str, tmp_path: Path) -> None:
    """A loader and its workers have no socket but in private folders; recordings and temporary files are private."""
    for name in ("home", "temporary"):
        (tmp_path / name).mkdir()
    environment = {"XDG_CACHE_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temporary")}
    root = tensor_files(tmp_path / "data", 40)
    code, out, error = run(PROGRAM, root, tmp_path / "temporary", method, environment=environment)
    assert code == 0, error
    listening, files, left, written = json.loads(out)
    assert all(os.path.dirname(socket) in files for socket in listening), listening
    assert set(files.values()) <= {0o700} and left == 9
    assert written == {"trace.json": 0o600, "report.html": 0o600}
