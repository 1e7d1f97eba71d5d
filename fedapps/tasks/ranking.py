"""Exact retrieval ranks and recalls, in blocks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def ranks(
    queries: Tensor, gallery: Tensor, query_ids: Tensor, gallery_ids: Tensor, block: int = 256
) -> tuple[Tensor, Tensor]:
    """How many gallery rows score above each query's best match (int64 ``[Q]``, 0 = first), and whether a row
    that is no match ties with it (bool ``[Q]``).

    Scores are fp32 dot products of ``queries [Q, d]`` and ``gallery [G, d]``; rows match where their int64
    ids are equal, so either side may hold several of the other's matches. Ties go in the query's favour: rows
    that score exactly as the best match do not count against it. ValueError for a query without a match and
    for numbers that are not finite.
    """
    queries, columns = queries.float(), gallery.float().T
    if not (queries.isfinite().all() and columns.isfinite().all()):
        raise ValueError("representations are not finite")
    found, tied = [], []
    for start in range(0, len(queries), block):
        scores = queries[start : start + block] @ columns
        others = query_ids[start : start + block, None] != gallery_ids
        best = scores.masked_fill(others, float("-inf")).amax(dim=1, keepdim=True)
        if best.isneginf().any():
            raise ValueError("a query has no match in the gallery")
        found.append((scores > best).sum(dim=1))
        tied.append(((scores == best) & others).any(dim=1))
    return torch.cat(found), torch.cat(tied)


def recalls(found: Tensor, at: Iterable[int] = (1, 5, 10)) -> dict[int, float]:
    """Percent of the ranks ``found`` (0 = first) within the first k, for each k."""
    return {k: 100 * (found < k).double().mean().item() for k in at}


def folds(ids: Tensor, number: int = 5) -> list[Tensor]:
    """``ids`` (distinct, in order) in up to ``number`` contiguous parts of nearly equal size, none empty."""
    return [part for part in ids.tensor_split(number) if len(part)]


def distinct(ids: Tensor) -> Tensor:
    """The distinct ``ids``, in order of first appearance."""
    values, group = torch.unique(ids, return_inverse=True)
    first = torch.full((len(values),), len(ids), device=ids.device)
    first.scatter_reduce_(0, group, torch.arange(len(ids), device=ids.device), "amin")
    return values[first.argsort()]
