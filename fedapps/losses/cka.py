"""Centred kernel alignment (CKA), by which FedHeNN compares representations that models need not share."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def centred_gram(x: Tensor) -> Tensor:
    """Gram matrix ``[B, B]`` of ``x [B, d]`` about its mean row; unchanged by rotations and shifts of ``x``."""
    x = x - x.mean(dim=0)
    return x @ x.T


def cka(K: Tensor, L: Tensor) -> Tensor:
    """Similarity, 0 to 1, of two centred Gram matrices ``[B, B]`` or means of such; 0 where one is zero.

    That is their cosine. A representation that is the same for every sample has no direction; its gradient stays
    finite.
    """
    return F.cosine_similarity(K.flatten(), L.flatten(), dim=0)


def linear_cka(x: Tensor, y: Tensor) -> Tensor:
    """CKA of ``x [B, d]`` and ``y [B, e]`` with linear kernels (Kornblith et al., ICML 2019)."""
    return cka(centred_gram(x), centred_gram(y))
