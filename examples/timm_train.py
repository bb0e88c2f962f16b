"""timm: a model and transforms of timm's, over a folder of photos, by its own loader's parts and Penstock's loader.

    python examples/timm_train.py [--data FOLDER] [--epochs N] [--model NAME]

FOLDER has one folder of photos a class; where there is none, made-up photos are written there.
"""

import argparse
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from timm.data import Mixup, create_transform, resolve_data_config
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from torchvision.datasets import ImageFolder

from penstock import DataLoader


def write_photos(root: Path, each: int = 32) -> None:
    """Write noise of two brightnesses, a folder each."""
    draw = np.random.default_rng(0)
    for name, brightness in (("bright", 150), ("dark", 0)):
        (root / name).mkdir(parents=True)
        for number in range(each):
            pixels = draw.integers(0, 90, (80, 100, 3), np.uint8) + np.uint8(brightness)
            Image.fromarray(pixels).save(root / name / f"{number}.jpg")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("photos"), metavar="FOLDER", help="(default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=2, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--model", default="resnet10t", metavar="NAME", help="of timm (default: %(default)s)")
    parser.add_argument("--side", type=int, default=64, metavar="N", help="of the crops (default: %(default)s)")
    options = parser.parse_args()
    if not options.data.exists():
        print(f"There is no folder {options.data}: made-up photos are written there.")
        write_photos(options.data)

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    training, validation = ImageFolder(str(options.data)), ImageFolder(str(options.data))
    classes = len(training.classes)
    model = timm.create_model(options.model, num_classes=classes).to(device)
    config = resolve_data_config({"input_size": (3, options.side, options.side)}, model=model)
    training.transform = create_transform(**config, is_training=True, auto_augment="rand-m9-mstd0.5")
    validation.transform = create_transform(**config)

    loader = DataLoader(training, batch_size=16, shuffle=True, drop_last=True, num_workers=2, device=device)
    evaluation = DataLoader(validation, batch_size=16, num_workers=2, device=device)
    mixup = Mixup(mixup_alpha=0.2, num_classes=classes)
    loss_function = SoftTargetCrossEntropy()
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)

    for epoch in range(1, options.epochs + 1):
        model.train()
        for x, y in loader:
            x, y = mixup(x, y)
            loss = loss_function(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            right = sum(int((model(x).argmax(1) == y).sum()) for x, y in evaluation)
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {right / len(validation):.1%}", flush=True)
    print(f"{loader.explain()}\n\n{evaluation.explain()}")


if __name__ == "__main__":
    main()
