"""A participant's batch of representations against those of others, by the name of a loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedapps.losses.contrastive import gramian, pairwise
from fedapps.losses.muscle import muscle_loss


def alignment(loss: str, z: Tensor, others: Sequence[Tensor], tau: float, tau_prev: float) -> Tensor:
    """The loss named ``muscle``, ``pairwise`` or ``gramian`` of unit rows ``z [B, d]`` against M others ``[B, d]``."""
    match loss:
        case "muscle":
            return muscle_loss(z, others, tau, tau_prev)
        case "pairwise":
            return pairwise(z, others, tau)
        case "gramian":
            return gramian(z, others, tau)
    raise ValueError(f"loss must be 'muscle', 'pairwise' or 'gramian', got '{loss}'")


def alignment_and_grad(
    loss: str, z: Tensor, others: Sequence[Tensor], tau: float, tau_prev: float
) -> tuple[Tensor, Tensor]:
    """The same loss and its gradient ``[B, d]`` to ``z``, for who does not hold the model that made ``z``."""
    z = z.detach().requires_grad_()
    value = alignment(loss, z, others, tau, tau_prev)
    return value.detach(), torch.autograd.grad(value, z)[0]
