"""Tasks with labels: one class a sample, several labels a sample, one class a pixel.

torchmetrics takes seconds to import, hence inside the functions that score.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, cast

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt, validate_call
from torch import Tensor, nn
from torch.nn import functional as F

from fedapps.errors import UserError
from fedapps.models import Encoder, ImageEncoder, LogitHead, SegmentationHead
from fedapps.tasks.base import Task, not_empty, width

Classes = Annotated[int, Field(ge=2)]


class Classification(Task):
    """One of ``num_classes`` a sample. Output: logits ``[B, C]``; target: int64 ``[B]``.

    ``spread`` weighs the released FedAFD's term that spreads the class weights W, CE(V Vᵀ, 0…C-1) with V =
    ReLU(W); the released value is 0.5.
    """

    primary = "accuracy"

    @validate_call
    def __init__(self, num_classes: Classes, spread: NonNegativeFloat = 0.0) -> None:
        super().__init__()
        self.num_classes, self.spread = num_classes, spread

    def head(self, encoders: Mapping[str, Encoder]) -> nn.Module:
        return LogitHead(width(encoders), self.num_classes)

    def loss(self, output: Tensor, target: Tensor, head: nn.Module | None = None) -> Tensor:
        """Cross entropy; with ``spread``, ``head`` must be the ``LogitHead`` that gave the output."""
        loss = F.cross_entropy(output, target)
        if self.spread:
            v = F.relu(cast(LogitHead, head).weight)
            loss = loss + self.spread * F.cross_entropy(v @ v.T, torch.arange(len(v), device=v.device))
        return loss

    def score(self, output: Tensor, target: Tensor, **known: Any) -> dict[str, float]:
        """``accuracy``, ``macro_f1`` (over the classes that are true or predicted somewhere), ``loss``.

        With ``mix=[C]`` (a participant's training class counts or shares), ``accuracy_own_mix`` too: the
        accuracy of each class, weighted by the mix. Classes without a test sample are left out of it; it is
        absent where none of the mix is left.
        """
        from torchmetrics.functional.classification import (
            multiclass_accuracy,
            multiclass_f1_score,
        )

        not_empty(target)
        classes = output.shape[1]
        scores = {
            "accuracy": 100 * multiclass_accuracy(output, target, classes, average="micro").item(),
            "macro_f1": 100 * multiclass_f1_score(output, target, classes, average="macro").item(),
            "loss": F.cross_entropy(output, target).item(),
        }
        mix = known.get("mix")
        if mix is not None:
            share = _tested_share(mix, target, classes)
            if share.sum() > 0:
                each = multiclass_accuracy(output, target, classes, average="none").double()
                scores["accuracy_own_mix"] = 100 * ((share * each).sum() / share.sum()).item()
        return scores


def _tested_share(mix: Sequence[float], target: Tensor, classes: int) -> Tensor:
    """``mix`` with zeros for the classes that no test sample has."""
    share = torch.as_tensor(mix, dtype=torch.float64, device=target.device)
    return share * (target.bincount(minlength=classes) > 0)


class MultiLabel(Task):
    """Any of ``num_classes`` labels a sample. Output: logits ``[B, K]``; target: 0 or 1, float ``[B, K]``."""

    primary = "map"

    @validate_call
    def __init__(self, num_classes: PositiveInt) -> None:
        super().__init__()
        self.num_classes = num_classes

    def head(self, encoders: Mapping[str, Encoder]) -> nn.Module:
        return LogitHead(width(encoders), self.num_classes)

    def loss(self, output: Tensor, target: Tensor, head: nn.Module | None = None) -> Tensor:
        return F.binary_cross_entropy_with_logits(output, target)

    def score(self, output: Tensor, target: Tensor, **known: Any) -> dict[str, float]:
        """``map`` (mean over labels of average precision), ``macro_f1``, ``micro_f1`` (at p > 0.5), ``loss``.

        Labels without a positive sample have no average precision: they are left out of all but the loss, and
        counted as ``labels_left_out`` (a number, not percent). If that leaves none, there is only the loss.
        """
        from torchmetrics.functional.classification import binary_average_precision, binary_f1_score

        not_empty(target)
        kept = target.sum(0) > 0
        rest = {
            "loss": F.binary_cross_entropy_with_logits(output, target).item(),
            "labels_left_out": float((~kept).sum()),
        }
        if not kept.any():
            return rest
        # Probabilities, as torchmetrics guesses whether it was given logits; double, as fp32 ties near 1.
        chance, truth = output[:, kept].double().sigmoid(), target[:, kept].long()
        labels = list(zip(chance.T, truth.T, strict=True))
        return {
            "map": _mean_percent(binary_average_precision(p, t) for p, t in labels),
            "macro_f1": _mean_percent(binary_f1_score(p, t) for p, t in labels),
            "micro_f1": 100 * binary_f1_score(chance.flatten(), truth.flatten()).item(),
            **rest,
        }


def _mean_percent(values: Iterable[Tensor]) -> float:
    return 100 * torch.stack(list(values)).double().mean().item()


class Segmentation(Task):
    """One of ``num_classes`` a pixel. Output: logits ``[B, C, H, W]``; target: int64 ``[B, H, W]``.

    Pixels of class ``ignore`` count nowhere. For image encoders.
    """

    primary = "miou"

    @validate_call
    def __init__(self, num_classes: Classes, ignore: int = 255) -> None:
        super().__init__()
        self.num_classes, self.ignore = num_classes, ignore

    def head(self, encoders: Mapping[str, Encoder]) -> nn.Module:
        encoder = encoders.get("image")
        if not isinstance(encoder, ImageEncoder):
            raise UserError("segmentation needs an image encoder")
        return SegmentationHead(encoder.channels, self.num_classes)

    def loss(self, output: Tensor, target: Tensor, head: nn.Module | None = None) -> Tensor:
        """0 where no pixel counts: a mean over none would be NaN, and so would the model."""
        if (target == self.ignore).all():
            return 0 * output.sum()
        return F.cross_entropy(output, target, ignore_index=self.ignore)

    def score(self, output: Tensor, target: Tensor, **known: Any) -> dict[str, float]:
        """``miou``, ``pixel_accuracy``, ``loss``.

        IoU is taken over all pixels of the test set, its mean over the classes true or predicted somewhere. Nothing
        is known where no pixel counts.
        """
        from torchmetrics.functional.classification import (
            multiclass_accuracy,
            multiclass_jaccard_index,
        )

        not_empty(target)
        classes, ignore = output.shape[1], self.ignore
        if (target == ignore).all():
            return {}
        iou = multiclass_jaccard_index(output, target, classes, average="macro", ignore_index=ignore)
        accuracy = multiclass_accuracy(output, target, classes, average="micro", ignore_index=ignore)
        return {
            "miou": 100 * iou.item(),
            "pixel_accuracy": 100 * accuracy.item(),
            "loss": self.loss(output, target).item(),
        }
