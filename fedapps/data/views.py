"""Random views: another look at the same samples, drawn for each of them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedapps.seeds import generator


def one_of(
    count: int, x: Tensor, rows: Tensor, rng: torch.Generator, seed: int, times: int = 1, pad: int = 0
) -> Tensor:
    """One of ``count`` random views of each sample, drawn by ``rng``; with ``times`` 2 a view of a view.

    The views of a row of ``x`` are the same for everybody and in every round: what a frozen net makes of them is known
    then. ``pad`` is the id that fills up token ids.
    """
    drawn = torch.randint(count, (len(x),), generator=rng)
    views = []
    for sample, row, number in zip(x.split(1), rows.tolist(), drawn.tolist(), strict=True):
        own = generator(seed, "view", row, number)
        for _ in range(times):
            sample = random_view(sample, own, pad)
        views.append(sample)
    return torch.cat(views)


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
