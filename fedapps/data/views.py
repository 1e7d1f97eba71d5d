"""Random views: another look at the same samples, drawn for each of them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def random_view(x: Tensor, rng: torch.Generator, pad: int = 0) -> Tensor:
    """A view of each sample: of pictures uint8 ``[B, 3, H, W]`` a crop of 70–100 % of the side, flipped or not,
    80–120 % as bright; of token ids int64 ``[B, L]`` those left when a tenth of all but the first is dropped."""
    return _picture_view(x, rng) if x.dtype == torch.uint8 else _text_view(x, rng, pad)


def _picture_view(x: Tensor, rng: torch.Generator) -> Tensor:
    side, x_at, y_at, flip, light = torch.rand(5, len(x), generator=rng).to(x.device)
    side = 0.7 + 0.3 * side
    theta = x.new_zeros(len(x), 2, 3, dtype=torch.float32)
    theta[:, 0, 0] = side * torch.where(flip < 0.5, -1.0, 1.0)
    theta[:, 1, 1] = side
    theta[:, :, 2] = (2 * torch.stack([x_at, y_at], dim=1) - 1) * (1 - side)[:, None]
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    seen = F.grid_sample(x.float(), grid, padding_mode="border", align_corners=False)
    return (seen * (0.8 + 0.4 * light).view(-1, 1, 1, 1)).round().clamp(0, 255).to(torch.uint8)


def _text_view(x: Tensor, rng: torch.Generator, pad: int) -> Tensor:
    drop = (torch.rand(x.shape, generator=rng) < 0.1).to(x.device)
    drop[:, 0] = False
    order = drop.int().argsort(dim=1, stable=True)  # what stays moves to the front
    return x.masked_fill(drop, pad).gather(1, order)
