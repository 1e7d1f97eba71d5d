"""Task heads: what turns representations, or maps, into logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedapps.models.base import Model


class LogitHead(nn.Module):
    """Logits ``[B, outputs]`` of representations ``[B, dim]`` of norm ≤ 1: a linear layer, times ``scale``.

    Without the scale, unit rows give logits too close together for cross entropy to learn in few steps.
    """

    def __init__(self, dim: int, outputs: int, scale: float = 10.0) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, outputs)
        self.scale = scale

    @property
    def weight(self) -> Tensor:
        """Class weights ``[outputs, dim]``."""
        return self.linear.weight

    def forward(self, z: Tensor) -> Tensor:
        return self.scale * self.linear(z)


def head_of(model: Model) -> LogitHead:
    """The head of a model that classifies."""
    assert isinstance(model.head, LogitHead)
    return model.head


class SegmentationHead(nn.Module):
    """Pixel logits ``[B, classes, H, W]`` from maps ``[B, channels, h, w]`` and the wanted size ``(H, W)``.

    GroupNorm, since segmentation batches are small: a batch of one is as good as any.
    """

    def __init__(self, channels: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, classes, 1),
        )

    def forward(self, maps: Tensor, size: torch.Size | tuple[int, int]) -> Tensor:
        return F.interpolate(self.layers(maps), tuple(size), mode="bilinear")
