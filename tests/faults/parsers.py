"""The parsers of files: what each is given whole, how a file is changed in its structure, and what reads it.

Checksums of what was changed are set right: else most changes would come no further than these. A reader returns
whether it had a result, and raises what no file may cause.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import re
import struct
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import penstock
from penstock import _native
from penstock.hooks.loads import Refused, load_numpy, load_torch
from penstock.state import ledger
from penstock.state.manifest import Manifest
from penstock.storage import description
from tests.corrupt import Archive, archive_of, npy, oracle, raw, saved, tensor_files
from tests.data import write_tensors
from tests.hooks.loaded import corpus as objects
from tests.indexed_photos import LOW, Reader, pictures, scan_of
from tests.jpegs import damaged
from tests.native_pool import SECONDS, pool_of, submit
from tests.native_testing import JpegRowStates, TensorReader, decode_jpeg_by, jpeg_decoders, parse_tensor

JPEGS = Path(__file__).parents[2] / "native" / "fuzz" / "corpus"
NUMBERS = (0, 1, 2, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
Files = dict[str, bytes]


class Parser(NamedTuple):
    """The files of a format, the change of one (with the others and a source of chance), and its reader."""

    corpus: Callable[[], list[Any]]
    change: Callable[[Any, list[Any], random.Random], Any]
    read: Callable[[Any], bool]


def changed(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Return bytes after one to three small changes: of bits, bytes, numbers, runs, or a splice with another file."""
    made = bytearray(data or b"\0")
    for _ in range(draw.randint(1, 3)):
        at, begin = draw.randrange(len(made)), draw.randrange(len(other) or 1)
        width, length = draw.choice((2, 4, 8)), draw.randint(1, 200)
        number = draw.choice((*NUMBERS, len(made), at)) % 2 ** (8 * width)
        end, put = draw.choice([
            (at + 1, bytes([made[at] ^ 1 << draw.randrange(8)])),
            (at + 1, bytes([draw.choice((0, 1, 0x7F, 0x80, 0xFF, *b"(t)KMJcqX.'0,9 }]"))])),
            (at + width, number.to_bytes(width, "little")),
            (len(made), b"" if at else bytes(made[:1])),
            (at + draw.randint(1, 40), b""),
            (at, other[begin : begin + draw.randint(1, 60)]),
            (at + length, other[at : at + length]),
        ])  # fmt: skip
        made[at:end] = put
        if not made:
            return b"\0"
    return bytes(made)


# --- .pt and .npy -----------------------------------------------------------------------------------------------------


@functools.cache
def archive(file: bytes) -> Archive | None:
    try:
        return archive_of(file)
    except Exception:  # whatever zipfile says of a bad file
        return None


def change_pt(file: bytes, corpus: list[bytes], draw: random.Random) -> bytes:
    found, other = archive(file), draw.choice(corpus)
    if found is None or not found.records or draw.random() < 0.15:
        return changed(file, other, draw)
    for _ in range(draw.choice((1, 1, 2, 3))):
        record, number = draw.choice(found.records), draw.choice((*NUMBERS, draw.randrange(600)))
        pickled = next((one for one in found.records if one.name.endswith(b"/data.pkl")), record)
        name = record.name.partition(b"/")[2]
        kind = draw.randrange(14)
        if kind < 6:  # most of what a file says is in its pickle
            data = bytearray(pickled.data or b".")
            at = draw.randrange(len(data))
            data[at] = draw.choice((*[data[at] ^ 1, data[at] - 1 & 255] * 5, draw.randrange(256), *b"NK)]}(.tuehRQ"))
            whole = bytes(data) if draw.random() < 0.8 else changed(pickled.data, other, draw)
            found = found.edit(b"data.pkl", data=whole)
        elif kind == 6:
            found = found.edit(name, data=changed(record.data, other, draw))
        elif kind == 7:
            field = draw.choice(("size", "packed", "offset"))
            found = found.edit(name, **{field: number % 2**32})
        elif kind == 8:
            extra = struct.pack("<HH", 1, draw.choice((8, 16, 24, 4))) + struct.pack("<Q", number) * draw.randint(0, 3)
            found = found.edit(name, **{draw.choice(("extra", "local_extra")): extra, "size": 2**32 - 1})
        elif kind == 9:
            found = found.edit(name, **{draw.choice(("flags", "method", "attributes")): number % 2**16})
        elif kind == 10:
            found = found.edit(name, **{draw.choice(("local_name", "comment")): record.name[: draw.randrange(20)]})
        elif kind == 11:
            found = found.plus(record) if draw.random() < 0.5 or len(found.records) == 1 else found.drop(name)
        elif kind == 12:
            end = {draw.choice(("length", "start", "end64")): number}
            found = Archive(found.records, end=end, count=draw.choice((None, number % 2**16)))
        else:
            records = draw.sample(found.records, len(found.records))
            found = Archive(tuple(records), zip64=draw.random() < 0.5, comment=other[: draw.choice((0, 0, 9))])
    return found.file() if draw.random() < 0.9 else changed(found.file(), other, draw)


def change_npy(file: bytes, corpus: list[bytes], draw: random.Random) -> bytes:
    """Change what the header says, and the length that it says to have."""
    text = file[10 : 10 + int.from_bytes(file[8:10], "little")]
    for _ in range(draw.randint(1, 2)):
        word = draw.choice(re.findall(rb"\d+|'[^']*'|\w+|\W", text) or [b""])
        digits = str(draw.choice(NUMBERS)).encode()
        small = str(draw.randrange(5)).encode()
        put = draw.choice(
            (b"", word * 2, b"-1", digits, *[small] * 6, b"(3, 4, 5)", b"'|O'", b"'<f4'", b"'>i2'", b"True")
        )
        text = text.replace(word, put, 1)
    data = file[10 + int.from_bytes(file[8:10], "little") :]
    made = file[:8] + struct.pack("<H", len(text) % 2**16) + text + data[: draw.choice((None, None, None, -1, 9))]
    return made if draw.random() < 0.7 else changed(draw.choice((file, made)), draw.choice(corpus), draw)


def torch_files() -> list[bytes]:
    bad = [file for file, _ in tensor_files().values() if b"NUMPY" not in file[:6] and len(file) < 4000]
    many = archive_of(saved([])).edit(b"data.pkl", data=b"\x80\x02(" + b"N" * 1_000_000 + b"t.").file()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ComplexHalf is experimental
        return [file for file in map(saved, objects().values()) if len(file) < 40_000] + [*bad, many]


def numpy_files() -> list[bytes]:
    arrays = [np.arange(24).astype(d).reshape(2, 3, 4) for d in ("<f4", "|u1", "<i8", "<c8", "|b1", "<f2")]
    made = [npy(array) for array in arrays] + [
        npy(np.asfortranarray(arrays[0]), (2, 0)),
        npy(arrays[1][0, 0, 0], (3, 0)),
    ]
    return made + [file for file, _ in tensor_files().values() if b"NUMPY" in file[:6] and len(file) < 4000]


_reader = TensorReader()


def read_tensor(file: bytes) -> bool:
    """Read a file in all ways; one tensor is, to the bit, what torch and NumPy make of it."""
    draw = random.Random(len(file))
    layout = parse_tensor(file)
    part = parse_tensor(file, head=draw.randint(0, len(file)), tail=draw.randint(0, len(file)))
    assert part in (layout, "needs bytes that were not read")
    Path("a.pt").write_bytes(file)
    loads: Any = (load_torch, load_numpy)
    found = [type(load(given)) for load in loads for given in (io.BytesIO(file), "a.pt")]
    spec = ("float32", (3, 4)) if isinstance(layout, str) else (layout["dtype"], layout["shape"])
    values = _reader.read("a.pt", draw.randrange(3), *spec)
    if isinstance(layout, str):
        return any(kind is not Refused for kind in found)
    if values != ("python", "the elements do not match their CRC-32"):
        wanted = oracle(file)
        assert values == raw(wanted)
        assert spec == (str(wanted.dtype).removeprefix("torch."), tuple(wanted.shape))
    return True


# --- images -----------------------------------------------------------------------------------------------------------


def change_jpeg(file: bytes, corpus: list[bytes], draw: random.Random) -> bytes:
    """Change the segments before the scan, with their lengths set right, or what follows them."""
    if draw.random() < 0.3:
        return damaged(file, draw)
    segments: list[tuple[int, bytes]] = []
    at = 2
    while at + 4 <= len(file) and file[at] == 0xFF and (not segments or segments[-1][0] != 0xDA):
        length = int.from_bytes(file[at + 2 : at + 4], "big")
        segments.append((file[at + 1], file[at + 4 : at + 2 + length]))
        at += 2 + length
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(segments))
        marker, payload = segments[place]
        kind = draw.randrange(5)
        if kind < 2 and payload:
            within = draw.randrange(len(payload))
            put = draw.choice((0, 1, 0x11, 0x22, 0x7F, 0xFF, payload[within] ^ 1, draw.randrange(256)))
            segments[place] = marker, payload[:within] + bytes([put]) + payload[within + 1 :]
        elif kind == 2:
            segments[place] = draw.choice((0xC0, 0xC1, 0xC2, 0xC4, 0xDA, 0xDB, 0xDD, 0xE1, 0xEE)), payload
        elif kind == 3:
            segments[place] = marker, changed(payload, draw.choice(corpus), draw)
        else:
            segments[place:place] = [draw.choice(segments)] * draw.choice((1, 1, 40))
    heads = (b"\xff%c" % marker + struct.pack(">H", len(data) + 2 & 0xFFFF) + data for marker, data in segments)
    return b"\xff\xd8" + b"".join(heads) + file[at:]


def read_jpeg(file: bytes) -> bool:
    """Read a header, and decode what is no larger than 512 x 512 by each decoder, once from states that are made up."""
    draw = random.Random(len(file))
    certified = _native.certify_jpeg(file)
    found = _native.decode_jpeg(file, None, 1 << 18)
    if isinstance(found, str):
        return not isinstance(certified, str)
    height, width, _ = found.shape
    for name in jpeg_decoders():
        states = JpegRowStates()
        if name != "libjpeg" and not isinstance(decode_jpeg_by(file, name, None, states), str):
            for row in range(len(states.known)):
                states.suppose(
                    row, (draw.choice((draw.randrange(8 * len(file)), 2**32 - 2)), *(-(2**15), 2**15 - 1, 7))
                )
            decode_jpeg_by(file, name, (0, height // 2, width, height), states)
    return True


# --- the index of shards ----------------------------------------------------------------------------------------------


def shards() -> list[Files]:
    """Return two packed datasets: photos with decoder states, and tensors with labels."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        labels = {f"id-{number}": f"text {number}" for number in range(8)}
        tensors = penstock.TensorFolder(write_tensors(root / "tensors", count=8), labels=labels)
        penstock.pack(penstock.ImageFolder(pictures(root / "photos", 2)), root / "a", states=True)
        penstock.pack(tensors, root / "b", shard_size=6000)
        return [{path.name: path.read_bytes() for path in (root / name).iterdir()} for name in "ab"]


def change_shards(files: Files, corpus: list[Files], draw: random.Random) -> Files:
    made, other = dict(files), draw.choice(corpus)
    name = draw.choice(sorted(files))
    start = 10 + int.from_bytes(files[name][8:10], "little")
    if name == "dataset.json":
        made[name] = change_json(files[name], corpus, draw)
    elif name.endswith(".index.npy") and draw.random() < 0.8:
        rows = bytearray(made[name][start:])
        width = draw.choice((4, 8))
        at = draw.randrange(len(rows) // width) * width
        number = draw.choice((*NUMBERS, int.from_bytes(rows[at : at + width], "little") + draw.choice((-1, 1))))
        rows[at : at + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")
        made[name] = made[name][:start] + bytes(rows)
    elif name.endswith(".npy") and draw.random() < 0.5:
        made[name] = change_npy(made[name], [file for key, file in other.items() if key.endswith(".npy")], draw)
    else:
        made[name] = changed(made[name], draw.choice(list(other.values())), draw)
    return made if name == "dataset.json" else with_checksums(made)


def with_checksums(files: Files) -> Files:
    """Return the same files with a dataset.json that speaks of them."""
    held = json.loads(files["dataset.json"])
    (split,) = held["splits"].values()
    for column in (*split["shards"], *(split[key] for key in ("index", "ids", "states") if split.get(key))):
        column.update(bytes=len(files[column["name"]]), crc32c=_native.crc32c(files[column["name"]]))
    held["crc32c"] = description._crc32c(held["splits"])
    return {**files, "dataset.json": json.dumps(held).encode()}


def read_shards(files: Files) -> bool:
    """Open a dataset and read samples, with and without their checksums: any of Penstock's errors is right."""
    for name, data in files.items():
        Path(name).write_bytes(data)
    count = 0
    for verify in (True, False):
        with contextlib.suppress(penstock.PenstockError, OSError, StopIteration), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset = penstock.Shards(".", verify=verify, transform=LOW if b"images" in files["dataset.json"] else None)
            dataset.index.ids(), dataset.targets
            for position in range(min(len(dataset), 3)):
                with contextlib.suppress(penstock.PenstockError):
                    dataset[position]
            next(iter(penstock.DataLoader(dataset, batch_size=2, num_workers=0)))
            count += 1
    return count > 0


# --- files of caches --------------------------------------------------------------------------------------------------

SAMPLES = 6


def tiers() -> list[Files]:
    """Return the index and the bytes of a cache (native/files/cache_tier.cc), of one dataset."""
    contents = [bytes([number]) * (number * 100 + 1) for number in range(SAMPLES)]
    return [_tier([(sum(map(len, contents[:n])) + 1, len(one)) for n, one in enumerate(contents)], b"".join(contents))]


def _tier(entries: list[tuple[int, int]], data: bytes) -> Files:
    index = struct.pack("<8sQ48x", b"PCACHE01", SAMPLES)
    for number, (place, length) in enumerate(entries):
        crc = _native.crc32c(data[place - 1 :][:length], _native.crc32c(b"%d" % number))
        index += struct.pack("<QLL", place, crc, length)
    return {"index": index, "data": data}


def change_tier(files: Files, corpus: list[Files], draw: random.Random) -> Files:
    entries = [(place, length) for place, _, length in struct.iter_unpack("<QLL", files["index"][64:])]
    at = draw.randrange(SAMPLES)
    place, length = entries[at]
    entries[at] = draw.choice([
        (draw.choice((*NUMBERS, place + draw.randint(-9, 9))) % 2**64, length),
        (place, draw.choice((*NUMBERS, length + draw.randint(-9, 9))) % 2**32),
    ])  # fmt: skip
    made = _tier(entries, files["data"][: draw.choice((None, None, draw.randrange(2000)))])
    if draw.random() < 0.2:
        made["index"] = changed(made["index"], files["data"], draw)
    return made


def read_tier(files: Files) -> bool:
    for name, data in files.items():
        Path(name).write_bytes(data)
    with open("index", "r+b") as index, open("data", "r+b") as contents:
        try:
            tier = _native.CacheTier(index.fileno(), contents.fileno(), SAMPLES, 1 << 20)
        except ValueError:
            return False
        cache = _native.SampleCache([tier])
        return [cache.find(number, b"%d" % number) for number in range(SAMPLES)].count(None) < SAMPLES


_folder = tempfile.TemporaryDirectory(prefix="penstock-fuzzing-")


@functools.cache
def _photos() -> Reader:
    return Reader(Path(_folder.name))


def states() -> list[bytes]:
    """Return an index of decoder states (native/image/jpeg_index.cc) of three photos."""
    reader = _photos()
    reader.check(reader.open())
    return [reader.path.read_bytes()]


def change_states(file: bytes, corpus: list[bytes], draw: random.Random) -> bytes:
    """Change a slot and its check, which is that of the photo's bytes too; the header; or any byte."""
    if draw.random() < 0.1:
        return changed(file, file, draw)
    made, reader = bytearray(file), _photos()
    number = draw.randrange(reader.photos)
    at = 4096 + number * reader.slot
    for _ in range(draw.randint(1, 3)):
        place, width = draw.choice((0, *range(8, reader.slot - 8))), draw.choice((1, 2, 4))
        made[at + place : at + place + width] = (draw.choice(NUMBERS) % 2 ** (8 * width)).to_bytes(width, "little")
    slot, photo = made[at : at + reader.slot], Path(reader.dataset.root, "class", f"{number}.jpg").read_bytes()
    points = slot[8 : 8 + 10 * slot[0]]
    end = scan_of(photo) + (int.from_bytes(points[-10:-6], "little") + 7) // 8
    check = functools.reduce(lambda crc, part: _native.crc32c(bytes(part), crc), (photo[:end], slot[:4], points), 0)
    made[at + 4 : at + 8] = check.to_bytes(4, "little")
    return bytes(made)


def read_states(file: bytes) -> bool:
    reader = _photos()
    Path("states").write_bytes(file)
    with open("states", "r+b") as opened:
        try:
            index = _native.JpegIndex(opened.fileno(), reader.photos, reader.slot, True)
        except ValueError:
            return False
    pool = pool_of(reader.filler.indexed(index))
    for number, wanted in enumerate(reader.wanted):
        batch, _ = submit(pool, [number], _native.Spec("uint8", list(wanted.shape)))
        pool.run_here(batch)
        assert pool.wait(batch, SECONDS) in ("done", "python")
    return index.counts()[2] > 0


# --- manifests --------------------------------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    2**70,
    1e300,
    "",
    "../x",
    "a\0b",
    "x" * 5000,
    [],
    {},
    [[]],
    {"a": []},
)


def change_json(text: bytes, corpus: list[Any], draw: random.Random) -> bytes:
    """Change values of a JSON text, and the checksum of a dataset.json."""
    held = json.loads(text)
    for _ in range(draw.randint(1, 3)):
        at, parent = held, None
        while isinstance(at, (dict, list)) and at and (parent is None or draw.random() < 0.85):
            parent, key = at, draw.choice(list(at) if isinstance(at, dict) else range(len(at)))
            at = parent[key]
        if parent is None:
            continue
        if draw.random() < 0.2:
            del parent[key]
        else:
            parent[key] = json.loads(json.dumps(draw.choice((*VALUES, at, at + 1 if isinstance(at, int) else [at]))))
    if "splits" in held and draw.random() < 0.9:
        held["crc32c"] = description._crc32c(held["splits"])
    made = json.dumps(held).encode()
    if draw.random() < 0.1:
        made = made.replace(b"[", draw.choice((b"[" * 20_000, b'{"a":' * 20_000)), 1)
    return made if draw.random() < 0.9 else changed(made, text, draw)


def descriptions() -> list[bytes]:
    return [files["dataset.json"] for files in shards()]


def read_description(text: bytes) -> bool:
    try:
        return bool(description.parse(text, "dataset.json"))
    except penstock.CorruptShards:
        return False


LINE = b'{"id": "b", "path": "/a.pt", "error": "OSError: no", "size": 3, "time": "2026-01-01T00:00:00Z", "index": 4}\n'


def read_manifest(text: bytes) -> bool:
    Path("bad").write_bytes(text + b"\n" + LINE.replace(b'"b"', b'"last"'))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = Manifest("bad").read()
        except penstock.InvalidOption:  # the first lines hold none
            return False
    assert "last" in found
    return len(found) > 1


STEPS = b"".join(b"0 %d 4 0123456789abcdef\n" % number for number in range(9))


def ledgers() -> list[bytes]:
    return [ledger._header({"seed": 1, "rank": 0, "world": 1, "batch_size": 4}) + STEPS]


def change_ledger(file: bytes, corpus: list[bytes], draw: random.Random) -> bytes:
    magic, version, rest = file.split(b" ", 2)
    run, _, steps = rest.partition(b"\n")
    run = change_json(run, corpus, draw) if draw.random() < 0.5 else run
    steps = changed(steps, steps, draw) if draw.random() < 0.5 else steps
    return b" ".join((magic, version, run + b"\n" + steps))


def read_ledger(file: bytes) -> bool:
    Path("a.ledger").write_bytes(file)
    try:
        found = ledger.read("a.ledger")
        return ledger.compare(found, found).equal > 0
    except penstock.InvalidOption:
        return False


PARSERS = {
    ".pt": Parser(torch_files, change_pt, read_tensor),
    ".npy": Parser(numpy_files, change_npy, read_tensor),
    "JPEG": Parser(lambda: [path.read_bytes() for path in sorted(JPEGS.glob("*.jpg"))], change_jpeg, read_jpeg),
    "shards": Parser(shards, change_shards, read_shards),
    "cache": Parser(tiers, change_tier, read_tier),
    "decoder states": Parser(states, change_states, read_states),
    "dataset.json": Parser(descriptions, change_json, read_description),
    "bad samples": Parser(lambda: [LINE], change_json, read_manifest),
    "ledger": Parser(ledgers, change_ledger, read_ledger),
}
