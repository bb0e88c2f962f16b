"""``penstock pack|index|info|verify|unpack``: datasets become packed shards, and what is done with these."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli.terminal import Bar, add_verb, positive, say, shown, write_lines
from penstock.cluster.option import Ray
from penstock.insight.targets import folder_dataset
from penstock.packing.encoding import QUALITY
from penstock.packing.foreign import index
from penstock.packing.pack import SHARD_SIZE, SPLIT, Packed, pack
from penstock.packing.unpack import unpack, verify
from penstock.storage.remote_shards import splits_of
from penstock.system.words import counted, size_of


def add_parser(verbs: Any) -> None:
    packing = add_verb(verbs, "pack", _pack, description=_PACK)
    packing.add_argument("source", metavar="SOURCE", help="an image folder (class/name.jpg), or .pt or .npy files")
    packing.add_argument(
        "out", metavar="OUT", help="the folder of the shards, or a URL: s3://, gs://, az://; the same command continues"
    )
    packing.add_argument("--split", default=SPLIT, metavar="NAME", help=f"the name of the split (default: {SPLIT})")
    packing.add_argument(
        "--shard-size", default=SHARD_SIZE, metavar="BYTES", help=f"bytes of a shard (default: {SHARD_SIZE})"
    )
    packing.add_argument(
        "--max-side", type=positive, metavar="N", help="resize JPEGs whose longer side has more pixels"
    )
    packing.add_argument(
        "--quality", type=positive, metavar="Q", help=f"quality of these JPEGs, 1 to 100 (default: {QUALITY})"
    )
    packing.add_argument("--decoded", action="store_true", help="store pixels: more bytes, and no decoding")
    packing.add_argument("--states", action="store_true", help="keep JPEG decoder states, which speed up crops")
    packing.add_argument(
        "--workers", type=positive, metavar="N", help="threads (default: one per core), or packers of --engine"
    )
    packing.add_argument(
        "--engine", choices=["ray"], help="actors of a Ray cluster write the shards to a shared folder"
    )
    packing.add_argument("--address", metavar="HOST:PORT", help="address of the Ray cluster (default: this machine's)")
    packing.add_argument("--restart", action="store_true", help="remove the files of an unfinished packing first")
    indexing = add_verb(verbs, "index", _index, description=_INDEX)
    indexing.add_argument("tars", metavar="FOLDER_OR_TARS", nargs="+", help="a folder of .tar files, or the files")
    indexing.add_argument("--split", default=SPLIT, metavar="NAME", help=f"the name of the split (default: {SPLIT})")
    indexing.add_argument("--workers", type=positive, metavar="N", help="threads (default: one per core)")
    checking = add_verb(verbs, "verify", _verify, description=_VERIFY)
    checking.add_argument("--decode", action="store_true", help="decode every sample too")
    unpacking = add_verb(verbs, "unpack", _unpack, description=_UNPACK)
    for parser in (checking, unpacking):
        parser.add_argument("shards", metavar="SHARDS", help="the folder of the shards, or its URL")
    for parser in (checking, unpacking):
        parser.add_argument("--split", metavar="NAME", help="the split, where the folder holds several")
    unpacking.add_argument("folder", metavar="FOLDER", help="a new or empty folder")


_PACK = (
    " OUT then holds tar files in WebDataset's naming, an index and dataset.json, and penstock.Shards(OUT) gives the "
    "same samples as SOURCE."
)
_INDEX = " The tar files are not changed; penstock.Shards reads them then."
_VERIFY = " Exit code 1: something is damaged."
_UNPACK = " Each file is compared with its checksum before it is written."


def _pack(arguments: argparse.Namespace) -> int:
    given = arguments

    with Bar("packing") as bar:
        made = pack(
            folder_dataset(given.source),
            given.out,
            split=given.split,
            shard_size=given.shard_size,
            max_side=given.max_side,
            quality=given.quality,
            decoded=given.decoded,
            states=given.states,
            workers=given.workers,
            restart=given.restart,
            engine=Ray(given.address) if given.engine or given.address else None,
            on_measured=lambda found: say(str(found)),
            on_progress=lambda now: bar.update(now.samples, now.of, now.bytes),
        )
    kept = f" ({counted(made.kept, 'shard')} finished before)" if made.kept else ""
    write_lines([_made(made) + kept])
    return 0


def _made(made: Packed) -> str:
    what = f"{counted(made.samples, 'sample')} in {counted(made.shards, 'shard')} of {size_of(made.bytes)}"
    return f"{shown(made.out)}: split {made.split!r}, {what}"


def _index(arguments: argparse.Namespace) -> int:
    tars = arguments.tars[0] if len(arguments.tars) == 1 else arguments.tars
    write_lines([_made(index(tars, split=arguments.split, workers=arguments.workers))])
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    splits = splits_of(arguments.shards)
    names = list(splits) if arguments.split is None else [arguments.split]
    wrong = 0
    for name in names:
        with Bar("verifying") as bar:
            for error in verify(arguments.shards, split=name, decode=arguments.decode, on_progress=bar.update):
                wrong += 1
                write_lines([shown(f"{type(error).__name__}: {error}")])
    samples = counted(sum(splits[name].samples for name in names if name in splits), "sample")
    how = "decoded and compared" if arguments.decode else "compared"
    write_lines([f"{samples} {how}: {counted(wrong, 'fault') if wrong else 'no fault'}"])
    return 1 if wrong else 0


def _unpack(arguments: argparse.Namespace) -> int:
    with Bar("unpacking") as bar:
        files = unpack(arguments.shards, arguments.folder, split=arguments.split, on_progress=bar.update)
    write_lines([f"{counted(files, 'file')} written to {shown(arguments.folder)}"])
    return 0
