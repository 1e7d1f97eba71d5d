"""Rivals of the Muscle loss: other ways to hold one batch of representations against others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def pairwise(anchor: Tensor, others: Sequence[Tensor], tau: float | Tensor = 0.2) -> Tensor:
    """Sum over the M others of one-way InfoNCE, the Muscle loss with α = 1; a mean over the anchors.

    Unit rows ``[B, d]`` everywhere; gradients to the anchor only. ``tau``: one, or ``[M]``.
    """
    target = torch.arange(len(anchor), device=anchor.device)
    taus = torch.as_tensor(tau, dtype=torch.float64).expand(len(others)).tolist()
    ways = [F.cross_entropy(anchor @ other.detach().T / t, target) for other, t in zip(others, taus, strict=True)]
    return torch.stack(ways).sum()


def gramian(
    anchor: Tensor, others: Sequence[Tensor], tau: float = 0.2, label_smoothing: float = 0.1, eps: float = 1e-8
) -> Tensor:
    """Contrast of volumes (GRAM, ICLR 2025): rows of the same sample span a small parallelotope.

    ::

        V_ij = sqrt( det Gram(z_i, z_j^1, …, z_j^M) + eps ),   loss = ( CE(-V/τ) + CE(-Vᵀ/τ) ) / 2

    with i = j as targets. Unit rows ``[B, d]`` everywhere; gradients to the anchor only. Without ``eps``, as in the
    released code, the gradient is infinite at perfect alignment, where the volume is 0.
    """
    others = [other.detach() for other in others]
    rows = torch.stack(others, dim=1)  # [B, M, d]
    # With A the others' Gram at j, λ and U its eigenvalues and -vectors, and v = z_i·z_j^m: det = |z_i|² det A -
    # vᵀ adj(A) v, and adj(A) = U diag(Π_{k≠m} λ_k) Uᵀ has no inverse, so that a singular A does no harm.
    values, vectors = torch.linalg.eigh(rows @ rows.mT)
    cofactors = torch.stack([values[:, torch.arange(len(others)) != m].prod(dim=1) for m in range(len(others))], dim=1)
    along = torch.einsum("id,jmd,jmk->ijk", anchor, rows, vectors)
    squared = anchor.square().sum(dim=1, keepdim=True) * values.prod(dim=1) - (along.square() * cofactors).sum(dim=2)
    volume = torch.sqrt(squared.clamp(min=0) + eps)
    target = torch.arange(len(anchor), device=anchor.device)
    ways = [F.cross_entropy(-v / tau, target, label_smoothing=label_smoothing) for v in (volume, volume.T)]
    return torch.stack(ways).mean()


def nt_xent(x: Tensor, y: Tensor, tau: float = 0.2) -> Tensor:
    """SimCLR's loss of two views of B samples, unit rows ``[B, d]``; each of the 2B rows against all the others."""
    z = torch.cat([x, y])
    logits = (z @ z.T / tau).fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(len(z), device=z.device).roll(len(x)))
