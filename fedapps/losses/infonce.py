"""The symmetric contrastive loss of CLIP."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def infonce(x: Tensor, y: Tensor, tau: float, match: Tensor | None = None) -> Tensor:
    """Mean of both directions' cross entropies over ``x yᵀ / tau``, for unit rows ``x [N, d]``, ``y [M, d]``.

    Bool ``match [N, M]`` (None: row i matches row i) may hold several matches a row: they share the target
    evenly. Each row and column needs one.
    """
    logits = x @ y.T / tau
    if match is None:
        target = torch.arange(len(x), device=x.device)
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    target = match.to(logits.dtype)
    rows, columns = F.normalize(target, p=1, dim=1), F.normalize(target.T, p=1, dim=1)
    return (F.cross_entropy(logits, rows) + F.cross_entropy(logits.T, columns)) / 2
