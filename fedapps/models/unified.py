"""Unified Transformers: the same blocks for every modality, on embeddings of its own (FedCola, arXiv 2404.12467).

Towers of one size have blocks of the same names and shapes, and the same first values under the same seed, whatever
their modality. ``places`` tells of each parameter of a model which part of which modality it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from pydantic import PositiveInt, validate_call
from timm.layers import Attention, LayerNorm, Mlp, resample_abs_pos_embed
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from fedapps.errors import UserError
from fedapps.models.base import ImageEncoder, Model
from fedapps.models.image import timm_net
from fedapps.models.text import Buckets, HashedText, Rate


@dataclass(frozen=True)
class Size:
    """Of a tower, and the pictures that it reads by default; ``vit`` is timm's model of the same shape."""

    width: int
    depth: int
    heads: int
    patch: int
    side: int
    vit: str | None = None


SIZES = {"tiny": Size(64, 4, 4, 8, 32), "small": Size(384, 12, 6, 16, 224, "vit_small_patch16_224")}
SizeName = Literal["tiny", "small"]


class Tower(nn.Module):
    """Pre-norm Transformer blocks and a last norm."""

    def __init__(self, size: Size, drop_path: float) -> None:
        super().__init__()
        norm: Any = partial(LayerNorm, eps=1e-6)
        rates = torch.linspace(0, drop_path, size.depth).tolist()
        self.blocks = nn.ModuleList(
            Block(size.width, size.heads, qkv_bias=True, drop_path=rate, norm_layer=norm) for rate in rates
        )
        self.norm = norm(size.width)
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """States ``[B, L, width]`` of tokens; no token attends to those where ``real [B, L]`` is false."""
        mask = None if real is None else real[:, None, None]
        for block in self.blocks:
            x = block(x, attn_mask=mask)
        return self.norm(x)


class Patches(nn.Module):
    """Pictures ``[B, 3, side, side]`` to tokens ``[B, 1 + (side / patch)², width]``, a class token first."""

    def __init__(self, width: int, patch: int, side: int) -> None:
        super().__init__()
        self.grid = side // patch
        self.proj = nn.Conv2d(3, width, patch, stride=patch)
        self.start = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + self.grid**2, width))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.proj(x).flatten(2).transpose(1, 2)
        return torch.cat([self.start.expand(len(x), -1, -1), tokens], dim=1) + self.positions


class Words(nn.Module):
    """Ids ``[B, L]`` to tokens ``[B, 1 + L, width]``: word and position, normalised as in BERT, a class token first."""

    def __init__(self, width: int, buckets: int, max_length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(buckets, width, padding_idx=0)
        self.start = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + max_length, width))
        self.norm = LayerNorm(width)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        tokens = torch.cat([self.start.expand(len(ids), -1, -1), self.words(ids)], dim=1)
        return self.norm(tokens + self.positions[:, : tokens.shape[1]])


class UnifiedImage(ImageEncoder):
    """A ViT, read off at its class token; a projection only where the scenario's dim is not the tower's width.

    ``size``: ``tiny`` (width 64, 4 blocks, pictures of 32 pixels in patches of 8) or ``small`` (ViT-S/16). ``side``:
    of the square that pictures are brought to. ``pretrained`` (``small`` only): timm's weights of
    vit_small_patch16_224, downloaded or from a local file. ``maps`` are the last states of the patches.
    """

    @validate_call
    def __init__(
        self,
        dim: PositiveInt,
        size: SizeName = "tiny",
        side: PositiveInt | None = None,
        drop_path: Rate = 0.0,
        pretrained: bool | str = False,
    ) -> None:
        shape = SIZES[size]
        side = side or shape.side
        if side % shape.patch:
            raise UserError(f"unified: side {side} is not divisible by the patch of {size}, {shape.patch}")
        super().__init__(dim, side, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        self.channels = shape.width
        self.tower = Tower(shape, drop_path)  # first, so that its values are those of any other modality's
        self.embed = Patches(shape.width, shape.patch, side)
        self.project = _projection(shape.width, dim)
        if pretrained:
            vit = _load(self.tower, size, pretrained)
            grid = [self.embed.grid, self.embed.grid]
            self.embed.proj.load_state_dict(vit.patch_embed.proj.state_dict())
            self.embed.start.data.copy_(vit.cls_token)
            self.embed.positions.data.copy_(resample_abs_pos_embed(vit.pos_embed, grid))

    def states(self, x: Tensor) -> Tensor:
        return self.tower(self.embed(self.pixels(x)))

    def encode(self, x: Tensor) -> Tensor:
        return self.project(self.states(x)[:, 0])

    def maps(self, x: Tensor) -> Tensor:
        return self.states(x)[:, 1:].transpose(1, 2).unflatten(2, (self.embed.grid, self.embed.grid))


class UnifiedText(HashedText):
    """The same over hashed words; padding is masked. ``pretrained``: blocks and last norm of the ViT."""

    @validate_call
    def __init__(
        self,
        dim: PositiveInt,
        size: SizeName = "tiny",
        buckets: Buckets = 8192,
        max_length: PositiveInt = 40,
        drop_path: Rate = 0.0,
        pretrained: bool | str = False,
    ) -> None:
        super().__init__(dim, buckets, max_length)
        shape = SIZES[size]
        self.tower = Tower(shape, drop_path)
        self.embed = Words(shape.width, buckets, max_length)
        self.project = _projection(shape.width, dim)
        if pretrained:
            _load(self.tower, size, pretrained)

    def encode(self, x: Tensor) -> Tensor:
        real = torch.cat([torch.ones_like(x[:, :1], dtype=torch.bool), x != 0], dim=1)
        return self.project(self.tower(self.embed(x), real)[:, 0])


def _projection(width: int, dim: int) -> nn.Module:
    return nn.Identity() if width == dim else nn.Linear(width, dim)


def _load(tower: Tower, size: str, pretrained: bool | str) -> Any:
    """Load blocks and last norm of timm's ViT, which is returned. UserError: no such weights."""
    name = SIZES[size].vit
    if name is None:
        raise UserError(f"unified: there are no pretrained weights of size {size}, only of small")
    vit = timm_net(name, pretrained)
    tower.blocks.load_state_dict(vit.blocks.state_dict())
    tower.norm.load_state_dict(vit.norm.state_dict())
    return vit


# ------------------------------------------------------------------------------------- what is what

Part = Literal["attention", "mlp", "norm", "embedding", "head"]

_PARTS: list[tuple[type[nn.Module] | tuple[type[nn.Module], ...], Part]] = [
    ((Patches, Words), "embedding"),
    (Attention, "attention"),
    (Mlp, "mlp"),
    (nn.LayerNorm, "norm"),
]


@dataclass(frozen=True)
class Place:
    """What a parameter is, and of which modality."""

    part: Part
    modality: str


def places(model: Model) -> dict[str, Place]:
    """Parameter name -> place, by the modules that hold it, of which the outermost counts.

    What is neither embedding nor in a tower is ``head``; a task's head is of the model's first modality, which it
    reads.
    """
    found: dict[str, Place] = {}
    for modality, encoder in model.encoders.items():
        for path, module in encoder.named_modules(prefix=f"encoders.{modality}"):
            for part in [part for kind, part in _PARTS if isinstance(module, kind)]:
                for name, _ in module.named_parameters(prefix=path):
                    found.setdefault(name, Place(part, modality))
        for name, _ in encoder.named_parameters(prefix=f"encoders.{modality}"):
            found.setdefault(name, Place("head", modality))
    first = next(iter(model.encoders))
    return {name: found.get(name, Place("head", first)) for name, _ in model.named_parameters()}


def linears(encoder: nn.Module, parts: Literal["attn", "mlp", "all"] = "all") -> dict[str, nn.Linear]:
    """The linear layers of an encoder's blocks (qkv and proj, fc1 and fc2) by name: the same in every modality."""
    kinds: Any = {"attn": Attention, "mlp": Mlp, "all": (Attention, Mlp)}[parts]
    return {
        f"{path}.{name}": layer
        for path, module in encoder.named_modules()
        if isinstance(module, kinds)
        for name, layer in module.named_children()
        if isinstance(layer, nn.Linear)
    }
