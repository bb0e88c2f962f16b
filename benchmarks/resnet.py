"""ResNet-50 (He et al. 2015, with the stride in the 3x3 convolution), so that a benchmark needs no torchvision."""

from __future__ import annotations

import torch
from torch import nn


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps height and width but for its stride, and batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 to four times the width, beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.path = nn.Sequential(
            convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            convolution(width, outputs, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.path(x) + self.shortcut(x))


def resnet50(classes: int = 1000) -> nn.Module:
    """25,557,032 parameters for 1000 classes; takes (samples, 3, 224, 224)."""
    layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if number == 0 and width > 64 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
