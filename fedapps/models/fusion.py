"""Granularity-aware feature fusion (GFF) of FedAFD."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedapps.models.base import BatchNorm1d


def _branch(dim: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(dim, hidden), BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, dim), BatchNorm1d(dim)
    )


class GFF(nn.Module):
    """Mixes local and global representations element by element, in two levels (FedAFD, CVPR 2026)::

        w = σ(T1(l + g) + T2(l + g)),   h = w ⊙ l + (1 - w) ⊙ g
        w' = σ(T1'(h) + T2'(h)),        fused = w' ⊙ l + (1 - w') ⊙ g

    Each T is Linear(d, d/r), BatchNorm, ReLU, Linear(d/r, d), BatchNorm. The result is not normalised: of
    unit rows it has norm ≤ 1. ``reuse_t2`` uses T2 for T2', as the released code does. A batch of one in
    train mode uses BatchNorm's running statistics.
    """

    def __init__(self, dim: int, reduction: int = 4, reuse_t2: bool = False) -> None:
        super().__init__()
        hidden = max(dim // reduction, 1)
        self.first = nn.ModuleList(_branch(dim, hidden) for _ in range(2))
        self.second = nn.ModuleList(_branch(dim, hidden) for _ in range(1 if reuse_t2 else 2))

    def fuse(self, local: Tensor, global_: Tensor) -> Tensor:
        """``[B, d]`` from two ``[B, d]``."""
        own, other = self.first
        both = local + global_
        mixed = torch.lerp(global_, local, torch.sigmoid(own(both) + other(both)))
        own, other = self.second[0], self.second[1] if len(self.second) > 1 else other
        return torch.lerp(global_, local, torch.sigmoid(own(mixed) + other(mixed)))

    def forward(self, local: Tensor, global_: Tensor) -> Tensor:
        return self.fuse(local, global_)
