"""What every task has in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from fedapps.models import Encoder


class Task(nn.Module):
    """What a model is trained for: head, loss, scores. A module, since losses may have parameters."""

    primary: ClassVar[str]  # the score that counts; higher is better

    def head(self, encoders: Mapping[str, Encoder]) -> nn.Module | None:
        """A new head on these encoders, or None where the task works on representations."""
        raise NotImplementedError

    def loss(self, output: Any, target: Any, head: nn.Module | None = None) -> Tensor:
        """Scalar loss of a batch; ``head`` is for terms on the head's own weights."""
        raise NotImplementedError

    def score(self, output: Any, target: Any, **known: Any) -> dict[str, float]:
        """Scores on a whole test set, in percent except ``loss``. ValueError for an empty one."""
        raise NotImplementedError


def not_empty(target: Tensor) -> None:
    if not len(target):
        raise ValueError("there is no score of an empty test set")


def width(encoders: Mapping[str, Encoder]) -> int:
    """The one ``dim`` of all encoders, which share a head."""
    (dim,) = {encoder.dim for encoder in encoders.values()}
    return dim
