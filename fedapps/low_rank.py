"""Low-rank updates: matrices as truncated singular value decompositions, where that is smaller.

A tensor of m × n (its first dimension by all others) becomes ``<name>.u`` [m, r], ``<name>.s`` [r] and ``<name>.v``
[r, n]; whatever would not shrink stays as it is under its own name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

Layout = Mapping[str, tuple[str, tuple[int, ...]]]
FACTORS = ("u", "s", "v")


def compress(tensors: Mapping[str, Tensor], energy: float) -> dict[str, Tensor]:
    """Each matrix with the smallest rank whose singular values hold ``energy`` (0 to 1) of the squared sum.

    The rank may be full (released FedKD code then sends zeros); a matrix is kept whole where r(m + n + 1) ≥ mn.
    """
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        matrix = tensor.reshape(len(tensor), -1) if tensor.ndim > 1 else None
        if matrix is None or not tensor.is_floating_point() or not matrix.numel():
            packed[name] = tensor
            continue
        u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
        held = s.square().cumsum(0)
        rank = int((held < energy * held[-1]).sum()) + 1
        rank = min(rank, len(s))
        if rank * (sum(matrix.shape) + 1) >= matrix.numel():
            packed[name] = tensor
        else:
            parts = (u[:, :rank], s[:rank], v[:rank])
            packed |= {
                f"{name}.{f}": part.to(tensor.dtype).contiguous() for f, part in zip(FACTORS, parts, strict=True)
            }
    return packed


def expand(packed: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What ``compress`` packed, in the shapes of ``like``."""
    full: dict[str, Tensor] = {}
    for name, tensor in like.items():
        if name in packed:
            full[name] = packed[name]
        else:
            u, s, v = (packed[f"{name}.{f}"].double() for f in FACTORS)
            full[name] = ((u * s) @ v).reshape(tensor.shape).to(tensor.dtype)
    return full


def fold(packed: Layout, like: Layout) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The layout of what ``packed`` expands to; names that do not fit ``like`` stay as they are."""
    folded = dict(packed)
    for name, (dtype, shape) in like.items():
        factors = [packed.get(f"{name}.{f}") for f in FACTORS]
        if len(shape) < 2 or name in packed or None in factors:
            continue
        m, n, r = shape[0], math.prod(shape[1:]), factors[1][1][0] if factors[1][1] else 0  # type: ignore[index]
        if factors == [(dtype, (m, r)), (dtype, (r,)), (dtype, (r, n))] and 1 <= r <= min(m, n):
            for f in FACTORS:
                del folded[f"{name}.{f}"]
            folded[name] = (dtype, shape)
    return folded
