"""What every encoder and model of a participant has in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm


class Encoder(nn.Module):
    """Samples of one modality to vectors of ``dim`` numbers; its first values depend on torch's seed only."""

    dim: int
    made_from: str = ""  # name and options: encoders made from the same read the same tokens

    def encode(self, x: Tensor) -> Tensor:
        """Raw (not normalised) float representations ``[B, dim]``."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x)


class ImageEncoder(Encoder):
    """An encoder of uint8 pictures ``[B, 3, H, W]`` of any size.

    Resizing to ``size`` (side of a square, or height and width; None: as they come) and normalisation happen
    here, so that data sets hold plain bytes. ``mean`` and ``std`` are per channel, for pixels in 0–1; they
    are no part of the state dict.
    """

    channels: int  # of ``maps``
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        dim: int,
        size: int | tuple[int, int] | None,
        mean: Sequence[float] = (0.485, 0.456, 0.406),  # ImageNet
        std: Sequence[float] = (0.229, 0.224, 0.225),
    ) -> None:
        super().__init__()
        self.dim = dim
        self.size = (size, size) if isinstance(size, int) else size
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def pixels(self, x: Tensor) -> Tensor:
        """uint8 ``[B, 3, H, W]`` to normalised float ``[B, 3, H', W']``; TypeError for anything but uint8."""
        if x.dtype != torch.uint8:
            raise TypeError(f"images must be uint8 (0-255), got {x.dtype}")
        x = x.to(self.mean.dtype) / 255
        if self.size is not None and tuple(x.shape[-2:]) != self.size:
            x = F.interpolate(x, self.size, mode="bilinear", antialias=True)
        return (x - self.mean) / self.std

    def maps(self, x: Tensor) -> Tensor:
        """Float feature maps ``[B, channels, h, w]`` of the same pictures, for dense tasks."""
        raise NotImplementedError


class TextEncoder(Encoder):
    """An encoder of texts, tokenised once: ``encode(tokenize(texts))``."""

    pad: int = 0  # the id at the end of shorter texts

    def tokenize(self, texts: list[str]) -> Tensor:
        """int64 ids ``[N, L]``, padded at the end; ``L`` is at most the encoder's ``max_length``."""
        raise NotImplementedError


class Model(nn.Module):
    """A participant's model: an encoder for each modality it has, and its task's head (retrieval: None)."""

    def __init__(self, encoders: Mapping[str, Encoder], head: nn.Module | None, unit: bool = True) -> None:
        super().__init__()
        self.unit = unit
        self.encoders = nn.ModuleDict(encoders)
        self.head = head

    def represent(self, modality: str, x: Tensor) -> Tensor:
        """Representations ``[B, dim]``, scaled to unit rows unless the model is made with ``unit=False``."""
        z = self.encoders[modality].encode(x)  # type: ignore[operator]
        return F.normalize(z) if self.unit else z


def pyramid(maps: Sequence[Tensor]) -> Tensor:
    """Maps of several resolutions as one: ``[B, Σ C, h, w]`` at the first one's resolution."""
    size = maps[0].shape[-2:]
    return torch.cat([maps[0], *(F.interpolate(m, size, mode="bilinear") for m in maps[1:])], dim=1)


def _alone(norm: nn.Module, x: Tensor) -> bool:
    """Whether ``x [B, C, ...]`` has one value per channel, hence no variance: a batch of one, say."""
    return norm.training and x.numel() == x.size(1)


def _by_running(norm: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor) -> Tensor:
    return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps)


class BatchNorm1d(nn.BatchNorm1d):
    """BatchNorm that survives a batch of one in train mode: it then uses its running statistics as is."""

    def forward(self, x: Tensor) -> Tensor:
        return _by_running(self, x) if _alone(self, x) else super().forward(x)


class BatchNorm2d(nn.BatchNorm2d):
    """As ``BatchNorm1d``, for maps ``[B, C, h, w]``; only 1 × 1 maps of a batch of one are concerned."""

    def forward(self, x: Tensor) -> Tensor:
        return _by_running(self, x) if _alone(self, x) else super().forward(x)


def spare_lone_values(net: nn.Module) -> None:
    """Let every BatchNorm of another library's ``net`` survive a batch of one as ours do."""
    for norm in net.modules():
        if isinstance(norm, _BatchNorm):
            norm.register_forward_pre_hook(_still_if_alone)
            norm.register_forward_hook(_as_before)


def _still_if_alone(norm: Any, args: tuple[Tensor]) -> None:
    norm.was_alone = _alone(norm, *args)
    if norm.was_alone:
        norm.eval()


def _as_before(norm: Any, *_: object) -> None:
    if norm.was_alone:
        norm.train()
