"""Writes what a wheel carries as a software bill of materials: WHEEL.cdx.json beside each WHEEL, in CycloneDX 1.6.

tools/sbom.py WHEEL...

A wheel carries the package, nanobind in its extension module, and the libraries that auditwheel has put into it. What
the wheel requires (torch, numpy) is not in it, and not in the bill.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from email.parser import BytesParser
from pathlib import Path
from typing import Any

#: Of a bundled library, by the name of its file: its name, where its version stands in its data, and its licence.
LIBRARIES = {"libjpeg": ("libjpeg-turbo", rb"libjpeg-turbo version (\d[\w.]*)", "IJG AND BSD-3-Clause AND Zlib")}


def component(name: str, licence: str, version: str = "", data: bytes | None = None, **more: str) -> dict[str, Any]:
    """Return a component of a bill. data: its file, whose checksum it gets."""
    found: dict[str, Any] = {"type": "library", "bom-ref": name, "name": name}
    if version:
        found["version"] = version
    if data is not None:
        found["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}]
    return {**found, "licenses": [{"expression": licence}], **more}


def bill(wheel: Path) -> dict[str, Any]:
    """Return the bill of a wheel. Raises SystemExit for a bundled library that LIBRARIES does not name."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = BytesParser().parsebytes(archive.read(next(name for name in names if name.endswith("/METADATA"))))
        parts = []
        for name in names:
            folder, _, file = name.partition("/")
            if folder.endswith(".libs") and file:
                known = LIBRARIES.get(re.split(r"[-.]", file)[0])
                data = archive.read(name)
                found = re.search(known[1], data) if known else None
                if known is None or found is None:
                    sys.exit(f"sbom: {wheel.name} carries {name}, whose name and version tools/sbom.py does not know")
                parts.append(component(known[0], known[2], found[1].decode(), data))
            elif file.startswith("_native.") and file.endswith(".so"):
                parts.append(component("nanobind", "BSD-3-Clause", description="linked into the extension module"))
    distribution, version = metadata["Name"], metadata["Version"]
    own = component(
        distribution,
        metadata["License-Expression"],
        version,
        wheel.read_bytes(),
        purl=f"pkg:pypi/{distribution}@{version}?file_name={wheel.name}",
    )
    depends = [{"ref": distribution, "dependsOn": [part["bom-ref"] for part in parts]}]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": parts,
        "dependencies": depends + [{"ref": part["bom-ref"]} for part in parts],
    }


def main() -> None:
    for wheel in map(Path, sys.argv[1:]):
        wheel.with_name(f"{wheel.name}.cdx.json").write_text(json.dumps(bill(wheel), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
