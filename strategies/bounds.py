"""What a method's own definition says of the numbers in a reply: one that is beyond it is refused with ``WireError``.

Finite numbers of the right shape can still drown all others, or turn them into NaN once they are squared.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedapps.wire import WireError

SLACK = 1e-3  # what rounding may add
LONGEST = 1e6  # of representations that nobody scales: far beyond any that a model makes, and float32 holds its square


def representations(z: Tensor, unit: bool) -> None:
    """Rows of ``z [..., d]`` are representations or means of such, no longer than 1 if they are scaled (``unit``)."""
    longest = 1.0 if unit else LONGEST
    if z.double().norm(dim=-1).max() > longest + SLACK:
        raise WireError(f"its representations are longer than {longest:.0f}")


def probabilities(p: Tensor, of_one: bool = True) -> None:
    """``p [..., C]`` are probabilities; ``of_one``: of a single outcome, so that they sum to 1."""
    if p.numel() and not 0 <= p.min() <= p.max() <= 1 + SLACK:
        raise WireError("its probabilities are not from 0 to 1")
    if of_one and not ((p.double().sum(dim=-1) - 1).abs() <= SLACK).all():
        raise WireError("its probabilities do not sum to 1")


def between(first: int, labels: Tensor, last: int) -> None:
    """``labels`` are numbers from ``first`` to ``last``."""
    if not first <= labels.min() <= labels.max() <= last:
        raise WireError(f"its labels are not from {first} to {last}")


def counts(n: Tensor, samples: int) -> None:
    """``n [C]`` are a participant's samples of each class."""
    if not torch.equal(n, n.round().clamp(min=0)):
        raise WireError("its samples of a class are no count")
    if (total := n.double().sum()) != samples:
        raise WireError(f"its samples of all classes are {total:.0f}, not the {samples} that it has")


def gram(K: Tensor, unit: bool) -> None:
    """``K [l, l]`` is the Gram matrix of representations about their mean: symmetric, of rows that sum to 0, and
    positive semi-definite; scaled representations (``unit``) are at most 2 from their mean."""
    K = K.double()
    furthest = 2.0 if unit else 2 * LONGEST
    if K.max() > furthest**2 * (1 + SLACK):
        raise WireError(f"its representations are further than {furthest:.0f} from their mean")
    odd = torch.stack([(K - K.T).abs().max(), K.sum(dim=1).abs().max(), -torch.linalg.eigvalsh(K)[0]])
    if (odd > SLACK * K.trace()).any():
        raise WireError("its Gram matrix is none of centred representations")
