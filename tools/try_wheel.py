"""Tries an installed wheel: it loads, decodes a JPEG as Pillow does, and its libjpeg is the one it carries."""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import datasets, transforms

import penstock
from penstock import _native


def main() -> None:
    package = Path(penstock.__file__).parent
    if Path(sys.prefix) not in package.parents:
        sys.exit(f"penstock comes from {package}, not from the wheel in {sys.prefix}")

    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "class")
        folder.mkdir()
        pixels = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "noise.jpg", quality=90)
        photos = datasets.ImageFolder(root, transforms.PILToTensor())
        batch, _ = next(iter(penstock.DataLoader(photos, batch_size=1, num_workers=1)))
        if not torch.equal(batch[0], photos[0][0]):
            sys.exit("the wheel decodes a JPEG to other pixels than Pillow does")

    # What this process has mapped: Pillow and torchvision bring copies of their own in other folders.
    mapped = {
        Path(line.split(maxsplit=5)[5]) for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line
    }
    libraries = package.parent / "penstock_loader.libs"
    bundled = [path.name for path in mapped if path.parent == libraries and "jpeg" in path.name]
    if not bundled:
        sys.exit(f"the wheel brings no libjpeg of its own: nothing from {libraries} is loaded")
    print(f"{Path(_native.__file__).name} loads, decodes, and brings {bundled[0]}")


if __name__ == "__main__":
    main()
