"""The Muscle loss of FedMuscle: one model's batch against the batches of M others, over all tuples of their rows.

Unit rows ``z_i`` of the anchor and ``z_j^m`` of the others, m = 1…M, row i the same sample everywhere. A tuple
j = (j_1, …, j_M) in [B]^M takes one row from each of the others, and (i, …, i) is the positive of anchor i::

    L_i     = -log softmax_j( Σ_m z_i·z^m_{j_m} / τ_m + log α_j )  at j = (i, …, i)
    log α_j = -Σ_{m>m'} γ_mm' z^m_{j_m}·z^m'_{j_m'},   γ_mm' = 1/τ^(N-1)_mm' - 1/τ^(N)_mm' > 0

(arXiv 2602.01626; its double sum over m ≠ m' has a ½ for counting each pair twice.) The paper's message is one row
for each of the B^M tuples. But every factor belongs to one index or to two, so the sum over tuples is a contraction
of B × B matrices, and the others' M batches are all that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

CHUNK = 2**16
"""Most entries of a temporary in the contraction, unless one B × B matrix has more."""
MOST_TUPLES = 2**20
"""Of the paper's form, which takes 1 GiB for that many at d = 256."""


def muscle_loss(
    anchor: Tensor, others: Sequence[Tensor], tau: float | Tensor = 0.2, tau_prev: float | Tensor = 0.15
) -> Tensor:
    """Muscle loss, a mean over the anchors ``[B, d]``; ``others`` are M ≥ 1 constants ``[B, d]``; all unit rows.

    ``tau`` is τ^(N): one for all pairs, or a symmetric ``[M+1, M+1]`` of one for each pair, anchor first.
    ``tau_prev`` is τ^(N-1): one for all pairs of others, or a symmetric ``[M, M]``; it must be below ``tau``
    there. Diagonals mean nothing, and with M = 1, which is InfoNCE, neither does ``tau_prev``.

    Its gradient goes to the anchor only and cannot be differentiated again. ValueError for shapes that do not fit
    and for temperatures out of order.
    """
    return _Muscle.apply(anchor, others, tau, tau_prev)


def muscle_loss_and_grad(
    anchor: Tensor, others: Sequence[Tensor], tau: float | Tensor = 0.2, tau_prev: float | Tensor = 0.15
) -> tuple[Tensor, Tensor]:
    """``muscle_loss`` and its gradient ``[B, d]`` to the anchor, for who holds every Z but no anchor's model."""
    M, _, _ = _sizes(others, anchor)
    taus, gamma = _temperatures(M, tau, tau_prev)
    # The sum over tuples is at least exp(-Σ γ) of what it is divided by; float32 ends near exp(-87).
    dtype = torch.float64 if anchor.dtype == torch.float64 or gamma.sum() > 80 else torch.float32
    constants = [other.detach().to(dtype) for other in others]
    loss, grad = contraction(anchor.detach().to(dtype), constants, taus.tolist(), gamma.tolist())
    return loss.to(anchor.dtype), grad.to(anchor.dtype)


class _Muscle(torch.autograd.Function):
    """Value and gradient in one pass; only the gradient ``[B, d]`` is kept."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, others: Sequence[Tensor], tau: float | Tensor, prev: float | Tensor
    ) -> Tensor:
        loss, grad = muscle_loss_and_grad(anchor, others, tau, prev)
        ctx.save_for_backward(grad)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = ctx.saved_tensors
        return outer * grad, None, None, None


# ------------------------------------------------------------------------------------------- the contraction


def contraction(
    z: Tensor, others: Sequence[Tensor], tau: Sequence[float], gamma: Sequence[Sequence[float]]
) -> tuple[Tensor, Tensor]:
    """Loss and gradient ``[B, d]`` to ``z [B, d]``; ``tau`` of M pairs with the anchor, ``gamma`` M × M among others.

    ::

        K_m[i, j]     = exp(z_i·z_j^m / τ_m)               G_mm'[j, j'] = exp(-γ_mm' z_j^m·z_j'^m'),   m > m'
        Z_i           = Σ_j Π_m K_m[i, j_m] Π_{m>m'} G_mm'[j_m, j_m']
        L_i           = log Z_i - Σ_m log K_m[i, i] - Σ_{m>m'} log G_mm'[i, i]
        ∂(Σ L_i)/∂z_i = Σ_m ( Σ_j P_m[i, j] z_j^m / Z_i - z_i^m ) / τ_m

    with ``P_m`` of ``marginals``. Rows of log K and all of log G are shifted to a maximum of 0, which cancels in L_i.
    """
    log_K, log_G = [], {}
    for other, t in zip(others, tau, strict=True):
        logits = z @ other.T / t
        log_K.append(logits - logits.amax(dim=1, keepdim=True))
    for n, m in combinations(range(len(others)), 2):
        logits = -gamma[m][n] * others[m] @ others[n].T
        log_G[m, n] = logits - logits.amax()
    P = marginals([log.exp() for log in log_K], {pair: log.exp() for pair, log in log_G.items()})
    Z = P[0].sum(dim=1, keepdim=True)
    positives = torch.stack([log.diagonal() for log in (*log_K, *log_G.values())]).sum(dim=0)
    grad = torch.zeros_like(z)
    for p, other, t in zip(P, others, tau, strict=True):
        grad += (p / Z @ other - other) / t
    return (Z.log().squeeze(1) - positives).mean(), grad / len(z)


def marginals(K: Sequence[Tensor], G: Mapping[tuple[int, int], Tensor]) -> list[Tensor]:
    """For each row of ``K_m [R, B]`` and each value of j_m, the sum over the other indices: ``P_m [R, B]``.

    ::

        P_m[i, x] = Σ_{j: j_m = x} Π_m K_m[i, j_m] Π_{m>m'} G_mm'[j_m, j_m']

    Two indices are matrix products. With more, each value x of the last index turns K_m into K_m * G_Mm[x] and so
    leaves a problem with one index less; as many x as fit in ``CHUNK`` are done at once, as rows of that problem.
    """
    M, (R, B) = len(K), K[0].shape
    if M == 1:
        return [K[0]]
    if M == 2:
        return [K[0] * (K[1] @ G[1, 0]), K[1] * (K[0] @ G[1, 0].T)]
    P = [torch.zeros_like(k) for k in K]
    step = max(1, CHUNK // (R * B))
    for start in range(0, B, step):
        x = slice(start, start + step)
        given = [k[:, None] * G[M - 1, m][x] for m, k in enumerate(K[:-1])]  # [R, x, B]
        given[0] *= K[-1][:, x, None]
        parts = [p.view(R, -1, B) for p in marginals([k.flatten(0, 1) for k in given], G)]
        for total, part in zip(P, parts, strict=False):
            total += part.sum(dim=1)
        P[-1][:, x] = parts[0].sum(dim=2)
    return P


# ------------------------------------------------------------------------------------------ the paper's form


@torch.no_grad()
def tuple_matrix(
    others: Sequence[Tensor], tau: float | Tensor = 0.2, tau_prev: float | Tensor = 0.15
) -> tuple[Tensor, Tensor]:
    """The paper's message: ``S [B^M, d]``, ``S_j = Σ_m z^m_{j_m} / τ_m``, and ``log α [B^M]``; last index fastest.

    The paper divides by τ at the client if there is but one τ. Arguments are those of ``muscle_loss``; ValueError
    also for more than 2^20 tuples.
    """
    M, B, d = _sizes(others)
    if B**M > MOST_TUPLES:
        raise ValueError(f"{B}^{M} = {B**M:,} tuples are too many, 2^20 is the most; use muscle_loss")
    taus, gamma = _temperatures(M, tau, tau_prev)

    def spread(x: Tensor, *indices: int) -> Tensor:
        """``x [B, …, B, …]`` of some ``indices``, in increasing order, with an axis for each of all M."""
        return x.reshape([B if m in indices else 1 for m in range(M)] + list(x.shape[len(indices) :]))

    S, log_alpha = others[0].new_zeros(1), others[0].new_zeros([B] * M)
    for m, other in enumerate(others):
        S = S + spread(other / taus[m].item(), m)
    for m, n in combinations(range(M), 2):
        log_alpha -= spread(gamma[m, n].item() * others[m] @ others[n].T, m, n)
    return S.view(-1, d), log_alpha.flatten()


def muscle_loss_from_tuples(anchor: Tensor, S: Tensor, log_alpha: Tensor) -> Tensor:
    """``muscle_loss`` of ``anchor [B, d]`` from the ``tuple_matrix`` of the others; B^M × B of memory."""
    # The numbers of (i, …, i) are evenly spaced, from the first tuple to the last.
    positives = torch.arange(len(anchor), device=S.device) * ((len(S) - 1) // max(1, len(anchor) - 1))
    return F.cross_entropy(anchor @ S.T + log_alpha, positives)


# ------------------------------------------------------------------------------------------------ arguments


def _sizes(others: Sequence[Tensor], *anchor: Tensor) -> tuple[int, int, int]:
    """M, B and d; ValueError unless there are others, and all and the anchor are ``[B, d]`` and not empty."""
    shapes = {tuple(z.shape) for z in (*anchor, *others)}
    shape = shapes.pop() if len(shapes) == 1 and len(others) else ()
    if len(shape) != 2 or 0 in shape:
        given = [list(z.shape) for z in others]
        raise ValueError(f"others must be one or more batches [B, d] of the anchor's shape, got {given}")
    return len(others), shape[0], shape[1]


def _temperatures(M: int, tau: float | Tensor, tau_prev: float | Tensor) -> tuple[Tensor, Tensor]:
    """``τ_m [M]`` with the anchor and ``γ [M, M]`` among the others, 0 on the diagonal; float64 on the CPU."""
    all_pairs, prev = _table("tau", tau, M + 1), _table("tau_prev", tau_prev, M)
    with_anchor, among_others = all_pairs[0, 1:], all_pairs[1:, 1:]
    pairs = ~torch.eye(M, dtype=torch.bool)
    if not ((with_anchor > 0).all() and ((prev > 0) & (prev < among_others))[pairs].all()):
        raise ValueError(f"temperatures must be positive and tau_prev below tau, got tau {tau}, tau_prev {tau_prev}")
    gamma = (1 / prev - 1 / among_others).where(pairs, 0.0)
    if gamma.sum() > 700:
        raise ValueError(f"γ = 1/tau_prev - 1/tau of all pairs of others add up to {gamma.sum():.0f}: beyond float64")
    return with_anchor, gamma


def _table(name: str, value: float | Tensor, size: int) -> Tensor:
    """One temperature for each pair of ``size``, from one for all or as given."""
    table = torch.as_tensor(value, dtype=torch.float64, device="cpu")
    if table.ndim == 0:
        return table.expand(size, size)
    if table.shape != (size, size) or not torch.equal(table.triu(1), table.tril(-1).T):
        raise ValueError(f"{name} must be a number or a symmetric table {size} × {size}, got {list(table.shape)}")
    return table
