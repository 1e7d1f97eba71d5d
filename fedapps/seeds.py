"""Seeds: every random draw is named by what it is for, so it does not depend on who drew before."""

from __future__ import annotations

import hashlib

import torch


def seed_of(*names: object) -> int:
    """A 63-bit seed from names, e.g. ``seed_of(run_seed, round, "train", "image-0")``."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*names: object) -> torch.Generator:
    """A CPU generator seeded by ``seed_of(*names)``."""
    return torch.Generator().manual_seed(seed_of(*names))


def batches(count: int, size: int, rng: torch.Generator | None = None) -> list[torch.Tensor]:
    """Row numbers ``0…count-1`` in batches of ``size``, shuffled by ``rng`` if given.

    A last batch of one row joins the batch before it: BatchNorm cannot train on a single row.
    """
    order = torch.randperm(count, generator=rng) if rng is not None else torch.arange(count)
    parts = list(order.split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts
