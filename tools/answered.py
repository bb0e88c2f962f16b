"""Writes the tables of docs/workers.md: which functions of other packages do something else while a pass is open.

    python tools/answered.py

The names come from the tables of the code that replaces the functions. The tests compare the page with `text()`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from penstock.hooks import calls, images
from penstock.recipe import compose_hook, keyed_methods

PAGE = Path(__file__).parents[1] / "docs" / "workers.md"
BEGIN, END = "<!-- tools/answered.py writes this table -->\n", "<!-- end of the table -->\n"
#: By the first part of a name: how the library is called, and the guide that says what is answered.
LIBRARIES = {
    "torch": ("torch", "tensors.md#a-dataset-of-your-own-that-calls-torchload"),
    "numpy": ("numpy", "tensors.md#a-dataset-of-your-own-that-calls-torchload"),
    "safetensors": ("safetensors", "tensors.md#a-dataset-of-your-own-that-calls-torchload"),
    "PIL": ("Pillow", "images.md#a-dataset-of-your-own-that-opens-photos-with-pillow"),
    "torchvision": ("torchvision", "images.md#a-dataset-of-your-own-that-calls-torchvisionio"),
    "torchcodec": ("torchcodec", "images.md#a-dataset-of-your-own-that-calls-torchvisionio"),
    "cv2": ("OpenCV", "images.md#a-dataset-of-your-own-that-opens-photos-with-opencv"),
    "soundfile": ("soundfile", "audio.md"),
    "torchaudio": ("torchaudio", "audio.md"),
    "datasets": ("Hugging Face `datasets`", "tensors.md"),
}


def answered() -> Iterator[str]:
    """Yield the names of the functions that are answered natively in workers."""
    yield from (f"{home}.{name}" for home, name, _ in (*calls.OF_TORCH_AND_NUMPY, *calls.OF_PACKAGES))
    yield from (f"{home}.{kind}.{method}" for home, kind, method, _ in (*calls.METHODS, *compose_hook.METHODS))
    yield from (f"torchvision.io.{name}" for name in images.OF_TORCHVISION)
    yield from (f"torchcodec.decoders.{name}" for name in images.OF_TORCHCODEC)


def drawn() -> Iterator[str]:
    """Yield the names of the methods that draw by sample where a loader has a seed."""
    for module, rows in keyed_methods.METHODS.items():
        yield from (f"{module}.{kind}.{method}" for kind, method, _ in rows)


def shown(name: str) -> str:
    """Return a name as a program writes it."""
    public = name.replace("torchvision.transforms.transforms.", "torchvision.transforms.")
    public = public.replace("datasets.arrow_dataset.", "datasets.")
    for ending in (".forward", ".__call__", ".__new__"):
        public = public.removesuffix(ending)
    return f"{public.removesuffix('.__getitem__')}[...]" if public.endswith(".__getitem__") else public


def by_library() -> dict[str, list[str]]:
    found = defaultdict(set)
    for name in answered():
        found[name.partition(".")[0]].add(name)
    return {first: sorted(found.pop(first)) for first in LIBRARIES} | {first: sorted(found[first]) for first in found}


def text() -> str:
    """Return the table, as the page has it."""
    rows = ["| library | functions and methods | more |", "|---|---|---|"]
    for first, names in by_library().items():
        library, guide = LIBRARIES[first]
        page = guide.partition(".")[0].capitalize()
        rows.append(f"| {library} | {', '.join(f'`{shown(name)}`' for name in names)} | [{page}]({guide}) |")
    return "\n".join(rows) + "\n"


def main() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
