"""The soft contrastive loss of PCME, with point embeddings."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PCMELoss(nn.Module):
    """Every pair of rows is a match or not; its probability is a sigmoid of the distance (PCME, CVPR 2021)::

        δ_ij = sqrt(||x_i - y_j||² + 1e-6),   s_ij = -a δ_ij + b
        loss = 2 Σ_ij ( logsumexp(s_ij, -s_ij) - m_ij s_ij ),   m_ij = 1 for a match, else -1

    ``a`` (``scale``) and ``b`` (``shift``) are learned and start at 15. The factor 2 stands for both
    directions, which are equal for points. ``reduction``: ``sum`` over all pairs, as in the paper and its
    code (so the loss grows with the square of the batch), or ``mean`` over them.
    """

    def __init__(self, scale: float = 15.0, shift: float = 15.0, reduction: Literal["sum", "mean"] = "sum") -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))
        self.shift = nn.Parameter(torch.tensor(shift))
        self.reduction = reduction

    def forward(self, x: Tensor, y: Tensor, match: Tensor | None = None) -> Tensor:
        """Scalar for ``x [N, d]``, ``y [M, d]`` and bool ``match [N, M]`` (None: row i matches row i)."""
        if match is None:
            match = torch.eye(len(x), len(y), dtype=torch.bool, device=x.device)
        # The form by matrix product would lose the small distances, which matter most.
        distance = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
        logits = self.shift - self.scale * torch.sqrt(distance.square() + 1e-6)
        pairs = -2 * F.logsigmoid(2 * torch.where(match, logits, -logits))
        return pairs.sum() if self.reduction == "sum" else pairs.mean()
