"""`python tools/pictures.py [FOLDER]`: draw the pictures of the docs (docs/pictures) from what the commands write.

It makes photos of shapes, trains on them under `penstock run`, and has Chromium photograph the report and the contact
sheet; the lines of `penstock watch` become an SVG. It needs Chromium, Pillow and torchvision, and takes a minute.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.sax.saxutils import escape

from PIL import Image, ImageDraw

PENSTOCK = (sys.executable, "-m", "penstock")
KINDS = ("circle", "square", "triangle")
TRAIN = """
import sys
import torch
import torchvision
from PIL import Image
from torchvision.transforms import v2
import penstock
from torch.utils.data import DataLoader

crops = v2.Compose([v2.RandomResizedCrop(64), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
train = DataLoader(torchvision.datasets.ImageFolder("shapes", crops), 32, shuffle=True, num_workers=2)
test = penstock.DataLoader(penstock.ImageFolder("shapes", transform=crops), 32, num_workers=2)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, 4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(3))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(int(sys.argv[1])):
    for images, labels in train:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    with torch.no_grad():
        right = sum((model(images).argmax(1) == labels).sum() for images, labels in test)
"""
SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">
<style>text {{ font: 14px ui-monospace, Menlo, Consolas, monospace; fill: #1c2733; white-space: pre }}
rect {{ fill: #eef1f4 }} .first {{ font-weight: 700 }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #e3e8ee }} rect {{ fill: #14191f }} }}
</style><rect width="100%" height="100%" rx="6"/>
{lines}
</svg>
"""


def draw_shapes(root: Path, count: int) -> None:
    """Write photos of shapes into a folder for each kind."""
    draw = random.Random(3)
    for number in range(count):
        for kind in KINDS:
            paper, ink = (tuple(draw.randint(*ends) for _ in range(3)) for ends in ((190, 250), (0, 170)))
            image = Image.new("RGB", (320, 240), paper)
            pen, side = ImageDraw.Draw(image), draw.randint(40, 72)
            x, y = draw.randint(80, 240), draw.randint(80, 160)
            box = (x - side, y - side, x + side, y + side)
            if kind == "circle":
                pen.ellipse(box, ink)
            elif kind == "square":
                pen.rectangle(box, ink)
            else:
                pen.polygon([(x, y - side), (x - side, y + side), (x + side, y + side)], ink)
            path = root / kind / f"{kind}_{number:04d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path, quality=90)


def photograph(page: Path, picture: Path, size: tuple[int, int], *, dark: bool = False) -> None:
    """Write what Chromium shows of a page as a PNG of few colours."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        sys.exit("There is no Chromium, which photographs the pages: apt-get install chromium")
    options = [
        "--headless",
        "--disable-gpu",
        "--no-sandbox",
        "--hide-scrollbars",
        f"--user-data-dir={page.parent}/user",
    ]
    options += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--screenshot={picture}"]
    options += ["--window-size={},{}".format(*size), page.as_uri()]
    subprocess.run([browser, *options], check=True, capture_output=True, timeout=120)
    Image.open(picture).convert("RGB").quantize(128).save(picture, optimize=True)


def svg_of(lines: list[str]) -> str:
    """Return lines of a terminal as a picture."""
    rows = []
    for number, line in enumerate(lines):
        kind = "rest" if number else "first"
        rows.append(f'<text class="{kind}" x="16" y="{28 + 20 * number}">{escape(line)}</text>')
    width = 32 + 9 * max(map(len, lines))
    return SVG.format(width=width, height=36 + 20 * len(lines), lines="\n".join(rows))


def watched(folder: Path) -> list[str]:
    """Return the lines of `penstock watch` beside a training."""
    with subprocess.Popen(
        [*PENSTOCK, "run", "--quiet", "train.py", "1000"], cwd=folder, stderr=subprocess.DEVNULL
    ) as run:
        try:
            time.sleep(25)  # so that there is something to see
            shown = subprocess.run(
                [*PENSTOCK, "watch", str(run.pid), "--once"], check=True, capture_output=True, text=True
            )
        finally:
            run.kill()
    return shown.stdout.splitlines()


def main() -> None:
    """Draw all pictures."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures").resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_shapes(folder / "shapes", 200)
        (folder / "train.py").write_text(TRAIN.lstrip())
        subprocess.run([*PENSTOCK, "run", "--report", "report.html", "train.py", "6"], cwd=folder, check=True)
        view = ["view", "shapes", "--batch-size", "8", "--columns", "4", "--shuffle", "--seed", "1", "-o", "view.html"]
        subprocess.run([*PENSTOCK, *view], cwd=folder, check=True)
        for page, size in (("report", (1280, 1700)), ("view", (1160, 620))):
            photograph(folder / f"{page}.html", out / f"{page}.png", size)
            photograph(folder / f"{page}.html", out / f"{page}-dark.png", size, dark=True)
        (out / "watch.svg").write_text(svg_of(watched(folder)))


if __name__ == "__main__":
    main()
