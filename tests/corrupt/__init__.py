"""Bad tensor files, made by code: each has a name and the reason that the native reader gives for leaving it to Python.

The formats are those of `torch.save` (a zip of stored records, PKWARE APPNOTE) and of numpy.lib.format.
"""

import io
import random
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch

UTF8_AND_DESCRIPTOR = 0x0808


@dataclass(frozen=True)
class Record:
    """One record of an archive, with the fields of its headers that a test may want to be wrong."""

    name: bytes
    data: bytes
    flags: int = UTF8_AND_DESCRIPTOR
    method: int = 0
    size: int | None = None
    packed: int | None = None
    offset: int | None = None
    local_name: bytes | None = None
    extra: bytes = b""
    local_extra: bytes = b""
    comment: bytes = b""
    attributes: int = 0


@dataclass(frozen=True)
class Archive:
    """A zip archive as torch.save lays it out; `file()` writes it."""

    records: tuple[Record, ...]
    zip64: bool = True
    count: int | None = None
    end: dict[str, int] = field(default_factory=dict)
    comment: bytes = b""

    def file(self) -> bytes:
        out = bytearray()
        directory = bytearray()
        for record in self.records:
            offset = len(out) if record.offset is None else record.offset
            size = len(record.data) if record.size is None else record.size
            packed = size if record.packed is None else record.packed
            crc = zlib.crc32(record.data)
            local_name = record.name if record.local_name is None else record.local_name
            lengths = len(local_name), len(record.local_extra)
            out += struct.pack("<4s5H3L2H", b"PK\3\4", 0, record.flags, record.method, *[0] * 5, *lengths)
            out += local_name + record.local_extra + record.data
            out += struct.pack("<4s3L", b"PK\7\x08", crc, packed & 0xFFFFFFFF, size & 0xFFFFFFFF)
            directory += struct.pack("<4s6H3L", b"PK\1\2", 0, 0, record.flags, record.method, 0, 0, crc, packed, size)
            directory += struct.pack(
                "<5H2L", len(record.name), len(record.extra), len(record.comment), 0, 0, record.attributes, offset
            )
            directory += record.name + record.extra + record.comment
        count = len(self.records) if self.count is None else self.count
        start, length = len(out), len(directory)
        out += directory
        if self.zip64:
            end64 = len(out)
            given = self.end.get("length", length), self.end.get("start", start)
            out += struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 0x031E, 45, 0, 0, count, count, *given)
            out += struct.pack("<4sLQL", b"PK\6\7", 0, self.end.get("end64", end64), 1)
        out += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, length, start, len(self.comment)) + self.comment
        return bytes(out)

    @property
    def pickle(self) -> bytes:
        return next(record.data for record in self.records if record.name.endswith(b"/data.pkl"))

    def edit(self, name: bytes, /, **changes: object) -> "Archive":
        """The same archive with fields of one record (its name without the folder) changed."""
        records = tuple(
            replace(r, **changes) if r.name.partition(b"/")[2] == name else r  # type: ignore[arg-type]
            for r in self.records
        )
        return replace(self, records=records)

    def drop(self, name: bytes) -> "Archive":
        return replace(self, records=tuple(r for r in self.records if r.name.partition(b"/")[2] != name))

    def plus(self, *records: Record) -> "Archive":
        return replace(self, records=self.records + records)


def damages(content: bytes, draw: random.Random, *, flips: int = 1, head: int | None = None) -> Iterator[bytes]:
    """Yield a file that was cut off after each byte, and with a bit flipped of each byte, so many times.

    head: only of so many first bytes; behind them it is cut off here and there.
    """
    head = len(content) if head is None else head
    yield from (content[:length] for length in (*range(head), *range(head, len(content), 23)))
    for _ in range(flips):
        for place in range(head):
            yield content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]


def saved(value: object, **options: object) -> bytes:
    """What torch.save writes for `value`."""
    out = io.BytesIO()
    torch.save(value, out, **options)  # type: ignore[arg-type]
    return out.getvalue()


def npy(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    """What numpy writes for `array`."""
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=version)
    return out.getvalue()


def npy_with_header(header: bytes, data: bytes = bytes(48), version: bytes = b"\1\0") -> bytes:
    """A .npy file with any header text."""
    length = struct.pack("<H" if version[0] == 1 else "<L", len(header))
    return b"\x93NUMPY" + version + length + header + data


def raw(tensor: torch.Tensor) -> bytes:
    """The elements in C order. torch copies a bool that is neither 0 nor 1 as 1; here bytes are bytes."""
    if tensor.dtype == torch.bool:
        tensor = tensor.view(torch.uint8)
    if tensor.numel() == 0:
        return b""
    flat = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def oracle(file: bytes) -> torch.Tensor:
    """What Python makes of the file. map_location: the native reader takes the bytes of any device as they are."""
    if file.startswith(b"\x93NUMPY"):
        return torch.from_numpy(np.load(io.BytesIO(file), allow_pickle=False).copy(order="K"))
    loaded = torch.load(io.BytesIO(file), map_location="cpu", weights_only=True)
    assert type(loaded) is torch.Tensor
    return loaded


def archive_of(file: bytes) -> Archive:
    """The records of a file of torch.save, for rewriting."""
    with zipfile.ZipFile(io.BytesIO(file)) as opened:
        return Archive(tuple(Record(i.filename.encode(), opened.read(i)) for i in opened.infolist()))


def _pickled(change: Callable[[bytes], bytes]) -> bytes:
    archive = archive_of(saved(torch.arange(12, dtype=torch.float32).reshape(3, 4)))
    changed = change(archive.pickle)
    assert changed != archive.pickle
    return archive.edit(b"data.pkl", data=changed).file()


def _swapped(old: bytes, new: bytes) -> bytes:
    """What torch.save writes with other bytes in its pickle."""
    return _pickled(lambda pickle: pickle.replace(old, new, 1))


def _zip_files() -> dict[str, tuple[bytes, str]]:
    good = archive_of(saved(torch.arange(12, dtype=torch.float32).reshape(3, 4)))
    whole = good.file()
    long_pickle = b"\x80\x02" + bytes(1 << 20)
    far, long = struct.pack("<HHQ", 1, 8, 2**64 - 1), struct.pack("<HHQQ", 1, 16, *[2**64 - 1] * 2)
    start32 = replace(good, zip64=False).file()[:-6] + struct.pack("<LH", 0xFFFFFFFF, 0)
    return {
        "compressed": (good.edit(b"data/0", method=8).file(), "compressed record"),
        "compressed-size": (good.edit(b"data/0", packed=47).file(), "compressed record"),
        "encrypted": (good.edit(b"data.pkl", flags=0x0809).file(), "encrypted"),
        "directory-attribute": (good.edit(b"data/0", attributes=0x10).file(), "unusual record"),
        "record-comment": (good.edit(b"data/0", comment=b"x").file(), "unusual record"),
        "archive-comment": (replace(good, comment=b"hello").file(), "no end record"),
        "big-endian": (good.edit(b"byteorder", data=b"big").file(), "big-endian"),
        "version-4": (good.edit(b"version", data=b"4\n").file(), "format version"),
        "bad-alignment": (good.edit(b".storage_alignment", data=b"a lot").file(), "alignment"),
        "bad-serialization-id": (good.edit(b".data/serialization_id", data=b"\xff").file(), "serialization ID"),
        "no-pickle": (good.drop(b"data.pkl").file(), "no data.pkl"),
        "no-version": (good.drop(b"version").file(), "no version"),
        "no-storage": (good.drop(b"data/0").file(), "no storage"),
        "other-storage": (good.edit(b"data/0", name=b"archive/data/1").file(), "no record of a tensor's storage"),
        "two-storages": (good.plus(Record(b"archive/data/1", b"1")).file(), "several storages"),
        "two-pickles": (good.plus(Record(b"archive/data.pkl", b"1")).file(), "two records"),
        "two-folders": (good.plus(Record(b"other/byteorder", b"big")).file(), "several folders"),
        "no-folder": (Archive((Record(b"data.pkl", b""),)).file(), "not in a folder"),
        "other-case": (good.plus(Record(b"archive/DATA.PKL", b"1")).file(), "torch.save does not write"),
        "other-version-record": (good.plus(Record(b"archive/.data/version", b"9")).file(), "torch.save does not write"),
        "torchscript": (good.plus(Record(b"archive/constants.pkl", b"1")).file(), "TorchScript"),
        "name-with-nul": (good.plus(Record(b"archive/.a\0b", b"1")).file(), "bad record name"),
        "name-too-long": (good.plus(Record(b"archive/." + b"a" * 600, b"1")).file(), "name too long"),
        "local-name": (good.edit(b"data/0", local_name=b"archive/data/9").file(), "two headers differ"),
        "record-offset": (good.edit(b"data/0", offset=0xFFFFFF00).file(), "outside the file"),
        "record-offset-zip64": (good.edit(b"data/0", offset=0xFFFFFFFF).file(), "bad zip64 field"),
        "record-offset-2**64-1": (good.edit(b"data/0", offset=0xFFFFFFFF, extra=far).file(), "outside the file"),
        "record-size": (good.edit(b"data/0", size=0xFFFFFF00).file(), "outside the file"),
        "record-size-2**64-1": (good.edit(b"data/0", size=0xFFFFFFFF, extra=long).file(), "outside the file"),
        "record-shorter-than-storage": (good.edit(b"data/0", size=44).file(), "not as long as the pickle says"),
        "count-too-high": (replace(good, count=8).file(), "bad central directory"),
        "count-too-low": (replace(good, count=5).file(), "bad central directory"),
        "count-2**64-1": (replace(good, zip64=True, end={"length": 2**64 - 1}).file(), "end records differ"),
        "no-records": (Archive(()).file(), "neither"),
        "directory-start": (replace(good, end={"start": 2**63}).file(), "end records differ"),
        "zip64-locator": (replace(good, end={"end64": 0}).file(), "zip64 end record"),
        "directory-start-zip32": (start32, "not where the end record says"),
        "pickle-over-1-MiB": (good.edit(b"data.pkl", data=long_pickle).file(), "over 1 MiB"),
        "truncated": (whole[:-1], "no end record"),
        "truncated-half": (whole[: len(whole) // 2], "no end record"),
        "truncated-to-magic": (whole[:4], "truncated"),
        "trailing-byte": (whole + b"\0", "no end record"),
    }


def _pickle_files() -> dict[str, tuple[bytes, str]]:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1.0]), (3,), check_invariants=False)
    size, strides = b"K\x03K\x04\x86", b"K\x04K\x01\x86"
    nine = b"(" + b"K\x01" * 9 + b"t"
    nine_dims = _swapped(b"K\x00" + size + b"q\x06K\x04K\x01\x86", b"K\x00" + nine + nine)
    complex_tensor = torch.zeros(3, dtype=torch.complex64)
    float4 = getattr(torch, "float4_e2m1fn_x2", None)  # of torch 2.8
    return {
        "dict": (saved({"a": torch.zeros(2)}), "a dict"),
        "ordered-dict": (saved(OrderedDict(a=torch.zeros(2))), "a dict"),
        "list": (saved([torch.zeros(2)]), "a list"),
        "tuple": (saved((torch.zeros(2),)), "a tuple"),
        "tuple-of-four": (saved((torch.zeros(2), 1, 2, 3)), "a tuple"),
        "number": (saved(3.5), "no storage"),
        "parameter": (saved(torch.nn.Parameter(torch.zeros(2))), "Parameter"),
        "requires-grad": (saved(torch.zeros(2, requires_grad=True)), "requires grad"),
        "sparse": (saved(sparse), "several storages"),
        "conjugate": (saved(complex_tensor.conj()), "conjugate or negative view"),
        "negative": (saved(complex_tensor.conj().imag), "conjugate or negative view"),
        "meta": (saved(torch.zeros(2, device="meta")), "no storage"),
        **({"float4": (saved(torch.empty(4, dtype=float4)), "not read natively")} if float4 else {}),
        "protocol-4": (saved(torch.zeros(2), pickle_protocol=4), "protocol"),
        "legacy": (saved(torch.zeros(2), _use_new_zipfile_serialization=False), "before 1.6"),
        "nine-dimensions": (nine_dims, "torch.save does not write"),
        "size-without-stride": (_swapped(b"K\x04K\x01\x86", b"K\x01\x85"), "not read natively"),
        "negative-size": (_swapped(size, b"J\xff\xff\xff\xffK\x04\x86"), "not read natively"),
        "negative-stride": (_swapped(b"K\x04K\x01\x86", b"K\x04\x8a\x01\xff\x86"), "not read natively"),
        "size-2**63": (_swapped(size, b"\x8a\x09" + bytes(7) + b"\x80\0K\x04\x86"), "not read natively"),
        "size-2**62": (_swapped(size, b"\x8a\x08" + bytes(7) + b"\x40K\x04\x86"), "reaches outside its storage"),
        "stride-2**62": (_swapped(strides, b"\x8a\x08" + bytes(7) + b"\x40K\x01\x86"), "reaches outside its storage"),
        "stride-too-long": (_swapped(b"K\x04K\x01\x86", b"K\x05K\x01\x86"), "reaches outside its storage"),
        "offset-too-far": (_swapped(b"QK\x00", b"QK\x01"), "reaches outside its storage"),
        "offset-2**62": (_swapped(b"QK\x00", b"Q\x8a\x08" + bytes(7) + b"\x40"), "reaches outside its storage"),
        "storage-longer-than-record": (_swapped(b"K\x0ct", b"K\x0dt"), "not as long as the pickle says"),
        "storage-2**63": (_swapped(b"K\x0ct", b"\x8a\x08" + b"\xff" * 7 + b"\x7ft"), "not as long as"),
        "unknown-storage": (_swapped(b"FloatStorage", b"QInt8Storage"), "not read natively"),
        "unknown-function": (_swapped(b"_rebuild_tensor_v2", b"_rebuild_tensor_v9"), "not read natively"),
        "os-system": (_swapped(b"torch._utils\n_rebuild_tensor_v2", b"os\nsystem"), "not read natively"),
        "code-after-the-tensor": (_pickled(lambda p: p[:-1] + b"cos\nsystem\n."), "not read natively"),
        "byte-after-stop": (_pickled(lambda p: p + b"."), "torch.save does not write"),
        "pickle-cut": (_pickled(lambda p: p[:60]), "torch.save does not write"),
        "pickle-empty": (_pickled(lambda p: b""), "protocol"),
        "string-of-4-GiB": (_swapped(b"X\x03\0\0\0cpu", b"X\xff\xff\xff\xffcpu"), "torch.save does not write"),
        "location-not-ascii": (_swapped(b"cpu", b"c\xffu"), "torch.save does not write"),
    }


def _npy_files() -> dict[str, tuple[bytes, str]]:
    good = npy(np.arange(12, dtype=np.float32).reshape(3, 4))
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n"

    def header(old: str, new: str) -> bytes:
        assert old in text
        return npy_with_header(text.replace(old, new).encode())

    return {
        "npy-truncated-data": (good[:-1], "npy: truncated"),
        "npy-truncated-header": (good[:50], "npy: truncated"),
        "npy-truncated-to-magic": (good[:8], "npy: truncated"),
        "npy-version-9": (good[:6] + b"\x09\0" + good[8:], "unknown version"),
        "npy-header-too-long": (npy_with_header(b" " * 10_001), "over 10,000 bytes"),
        "npy-big-endian": (npy(np.zeros(3, dtype=">f4")), "big-endian"),
        "npy-object": (npy(np.array([None])), "dtype"),
        "npy-structured": (npy(np.zeros(3, dtype=[("a", "<f4")])), "structured"),
        "npy-string": (npy(np.array(["abc"])), "dtype"),
        "npy-bytes": (npy(np.array([b"abc"])), "dtype"),
        "npy-datetime": (npy(np.zeros(3, dtype="M8[s]")), "dtype"),
        "npy-longdouble": (npy(np.zeros(3, dtype=np.longdouble)), "dtype"),
        "npy-shape-number": (header("(3, 4)", "(12)"), "as numpy writes it"),
        "npy-shape-negative": (header("(3, 4)", "(-3, -4)"), "as numpy writes it"),
        "npy-shape-octal": (header("(3, 4)", "(03, 4)"), "as numpy writes it"),
        "npy-shape-huge": (header("(3, 4)", f"({2**62}, 8)"), "more than 63 bits"),
        "npy-shape-over-64-bits": (header("(3, 4)", f"({2**65},)"), "as numpy writes it"),
        "npy-shape-huge-and-empty": (header("(3, 4)", f"({2**62}, {2**62}, 0)"), "more than 63 bits"),
        "npy-nine-dimensions": (header("(3, 4)", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"), "more than 8 dimensions"),
        "npy-two-shapes": (header("'shape'", "'shape': (1,), 'shape'"), "as numpy writes it"),
        "npy-no-shape": (header(", 'shape': (3, 4)", ""), "as numpy writes it"),
        "npy-other-key": (header(", }", ", 'x': 1}"), "as numpy writes it"),
        "npy-code": (header("False", "__import__('os')"), "as numpy writes it"),
        "npy-text-after-dict": (header("}", "} + {}"), "as numpy writes it"),
        "npy-no-dict": (npy_with_header(b"[]\n"), "as numpy writes it"),
        "npy-empty-header": (npy_with_header(b""), "as numpy writes it"),
    }


def tensor_files() -> dict[str, tuple[bytes, str]]:
    """Every bad tensor file: its bytes, and words of the reason why the native reader leaves it to Python."""
    return {
        "empty": (b"", "empty file"),
        "text": (b"hello, this is no tensor", "neither a torch.save archive nor .npy"),
        "one-byte": (b"P", "neither"),
        "png": (b"\x89PNG\r\n\x1a\n" + bytes(64), "neither"),
        **_zip_files(),
        **_pickle_files(),
        **_npy_files(),
    }
