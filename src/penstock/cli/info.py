"""``penstock info``: what a folder of packed shards holds."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli.terminal import add_verb, shown, write_lines
from penstock.storage.remote_shards import splits_of
from penstock.system.words import counted, size_of


def add_parser(verbs: Any) -> None:
    showing = add_verb(verbs, "info", _info)
    showing.add_argument("shards", metavar="SHARDS", help="the folder of the shards, or its URL")


def _info(arguments: argparse.Namespace) -> int:
    splits = splits_of(arguments.shards)
    lines = []
    for name, split in splits.items():
        files = ", ".join("/".join(suffix or "as it was" for suffix in part.suffixes) for part in split.parts)
        labels = "none" if split.label is None else split.label
        if split.classes is not None:
            labels += f", {counted(len(split.classes), 'class', 'classes')}"
        rows = [
            ("split", name),
            ("kind", split.kind),
            ("samples", f"{split.samples:,}"),
            ("shards", f"{len(split.shards):,} of {size_of(sum(shard.bytes for shard in split.shards))} together"),
            ("index", size_of(sum(column.bytes for column in split.columns))),
            ("suffixes", files),
            ("labels", labels),
            ("options", ", ".join(f"{key} {value}" for key, value in split.options.items())),
            ("fingerprint", split.fingerprint),
        ]
        lines += [f"{head:<11}  {shown(text)}" for head, text in rows] + [""]
    write_lines(lines[:-1] if lines else [f"{shown(arguments.shards)} contains no split"])
    return 0
