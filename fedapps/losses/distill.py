"""FedAFD's way from clients to the server: similarity-weighted ensemble (SED), then distillation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def sed_weights(clients: Sequence[Tensor], server: Tensor, temperature: float = 1.0, block: int = 256) -> Tensor:
    """Weights ``[C, P]`` of C clients at each public sample; they sum to 1 over the clients.

    For unit rows ``clients[c] [P, d]`` and ``server [P, d]``, client c scores at sample k how well it finds
    the server's k among all, and the weights are the softmax of the scores over the clients::

        s_ck = log softmax_j(<c_k, server_j> / temperature) at j = k

    Done ``block`` rows at a time: never a P × P matrix.
    """
    scores = torch.stack([_scores(client, server, temperature, block) for client in clients])
    return scores.softmax(dim=0)


def sed_aggregate(clients: Sequence[Tensor], server: Tensor, temperature: float = 1.0, block: int = 256) -> Tensor:
    """The clients' sum ``[P, d]`` weighted by ``sed_weights``; not normalised."""
    total = torch.zeros_like(server)
    for weights, client in zip(sed_weights(clients, server, temperature, block), clients, strict=True):
        total.addcmul_(client, weights.unsqueeze(1))
    return total


@torch.no_grad()
def _scores(client: Tensor, server: Tensor, temperature: float, block: int) -> Tensor:
    """The log-softmax diagonal ``[P]``."""
    scores = []
    for start in range(0, len(client), block):
        logits = (client[start : start + block] / temperature) @ server.T
        scores.append(logits.diagonal(start) - logits.logsumexp(dim=1))
    return torch.cat(scores)


def kd_loss(student: Tensor, teacher: Tensor, metric: str = "l2") -> Tensor:
    """Distance of ``student [B, d]`` to the fixed ``teacher [B, d]``.

    ``l2``: mean over rows of the (un-squared) L2 norm, the paper's; its gradient at distance 0 is 0.
    ``mse``: mean over all elements, the released code's.
    """
    teacher = teacher.detach()
    if metric == "l2":
        return torch.linalg.vector_norm(student - teacher, dim=1).mean()
    if metric == "mse":
        return F.mse_loss(student, teacher)
    raise ValueError(f"metric must be 'l2' or 'mse', got '{metric}'")
