"""Image–text retrieval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import PositiveFloat, validate_call
from torch import Tensor, nn

from fedapps.losses import PCMELoss, infonce
from fedapps.models import Encoder
from fedapps.tasks.base import Task, not_empty
from fedapps.tasks.ranking import distinct, folds, ranks, recalls


class Retrieval(Task):
    """Find the text of an image and the image of a text.

    Output: unit rows (image ``[N, d]``, text ``[M, d]``); target: int64 (image_ids ``[N]``, text_ids
    ``[M]``). An image and a text belong together where their ids are equal.

    ``loss``: ``pcme`` (FedAFD's, with a learned scale and shift, ``reduction`` ``sum`` or ``mean`` over
    pairs) or ``infonce`` with temperature ``tau``.
    """

    primary = "r1_sum"

    @validate_call
    def __init__(
        self,
        loss: Literal["pcme", "infonce"] = "pcme",
        tau: PositiveFloat = 0.1,
        reduction: Literal["sum", "mean"] = "sum",
    ) -> None:
        super().__init__()
        self.tau = tau
        self.pcme = PCMELoss(reduction=reduction) if loss == "pcme" else None

    def head(self, encoders: Mapping[str, Encoder]) -> None:
        return None

    def loss(
        self, output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor], head: nn.Module | None = None
    ) -> Tensor:
        """Batch loss; equal ids match, so that the same picture twice in a batch is no contradiction."""
        images, texts = output
        match = target[0][:, None] == target[1]
        return self.pcme(images, texts, match) if self.pcme else infonce(images, texts, self.tau, match)

    def score(self, output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor], **known: Any) -> dict[str, float]:
        """Recalls in percent, ``i2t`` image to text and ``t2i`` back: a hit is any match among the first k.

        ==================  =======================================================================
        i2t_r1 … t2i_r10    over the full gallery, k = 1, 5, 10
        r1_sum, r10_sum     i2t + t2i (two terms); on COCO's 5,000 images the papers' 5K sum
        rsum                all six terms
        ties                queries whose best match ties with a row that is no match, in percent.
                            Ties count as hits, so near 100 here (a collapsed encoder) recalls mean
                            nothing
        gallery_images, …   gallery sizes: numbers, not percent
        …_5fold             all of these, averaged over five galleries: contiguous fifths of the
                            distinct ids in the images' order, each with all its images and texts;
                            on COCO the papers' 1K
        r1_sum_all          r1_sum + r1_sum_5fold (four terms), CreamFL's R@1_sum
        ==================  =======================================================================

        Where each image has its own id, the fifths are fifths of the images. ValueError for an image or text
        without a match.
        """
        images, texts = output
        image_ids, text_ids = target
        not_empty(image_ids)
        full = _recalls(images, texts, image_ids, text_ids)
        parts = []
        for ids in folds(distinct(image_ids)):
            i, t = torch.isin(image_ids, ids), torch.isin(text_ids, ids)
            parts.append(_recalls(images[i], texts[t], image_ids[i], text_ids[t]))
        mean = {f"{name}_5fold": sum(part[name] for part in parts) / len(parts) for name in full}
        return {**full, **mean, "r1_sum_all": full["r1_sum"] + mean["r1_sum_5fold"]}


def _recalls(images: Tensor, texts: Tensor, image_ids: Tensor, text_ids: Tensor) -> dict[str, float]:
    i2t, i2t_tied = ranks(images, texts, image_ids, text_ids)
    t2i, t2i_tied = ranks(texts, images, text_ids, image_ids)
    each = {f"{way}_r{k}": value for way, found in (("i2t", i2t), ("t2i", t2i)) for k, value in recalls(found).items()}
    return {
        **each,
        "r1_sum": each["i2t_r1"] + each["t2i_r1"],
        "r10_sum": each["i2t_r10"] + each["t2i_r10"],
        "rsum": sum(each.values()),
        "ties": 100 * torch.cat([i2t_tied, t2i_tied]).double().mean().item(),
        "gallery_images": float(len(images)),
        "gallery_texts": float(len(texts)),
    }
