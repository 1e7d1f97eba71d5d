"""Encoders of a large net and a projection: all of it learns, or the net is frozen and adapters learn in its stead.

LoRA (Hu et al., ICLR 2022, arXiv 2106.09685), by peft. What is frozen comes from pretrained weights, hence from the
encoder's name and options, and is in no state dict: it is neither stored nor sent. A state dict is loaded strictly;
only the frozen tensors may be absent from it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedapps.errors import UserError
from fedapps.models.base import Encoder


class Backbone(Encoder):
    """``net`` gives features ``[B, width]``, ``project`` brings them to ``dim`` numbers.

    ``lora``: rank of the adapters of a frozen net (see ``adaptable``; above the size of a layer it adds nothing there).
    ``frozen``: a frozen net, alone if there is no ``lora``. ``hidden``: width of a hidden layer of the
    projection; without it the projection is linear.
    """

    net: Any  # a module, with methods of its library
    project: nn.Module
    still: Iterable[nn.Module] = ()  # what is in eval mode always
    recalled = ""  # names the net whose features never change, empty if they do

    def assemble(
        self,
        name: str,
        pretrained: bool | str,
        net: nn.Module,
        width: int,
        lora: int | None,
        frozen: bool,
        hidden: int | None,
    ) -> None:
        """Set ``net`` and ``project``. UserError: nothing to adapt, or frozen and not ``pretrained``."""
        self.net = net
        self.project = nn.Linear(width, self.dim) if hidden is None else _perceptron(width, hidden, self.dim)
        if lora is None and not frozen:
            return
        if not pretrained:
            raise UserError(f"{name}: lora and frozen keep the weights that are there: say which with pretrained:")
        net.requires_grad_(False)
        if lora is None:
            self.still, self.recalled = [net], f"{name} {pretrained} {vars(self).get('size')}"
        else:
            adapt(net, lora, name)
            self.still = [module for module in net.modules() if isinstance(module, _BatchNorm)]
        _leave_out_frozen(net)
        self.train()

    def features(self, x: Tensor) -> Tensor:
        """Float ``[B, width]``."""
        raise NotImplementedError

    def encode(self, x: Tensor) -> Tensor:
        return self.project(recall(self.recalled, self.features, x) if self.recalled else self.features(x))

    def train(self, mode: bool = True) -> Self:
        """As of any module; but a frozen net's BatchNorm stays in eval mode, and all of a net without adapters."""
        super().train(mode)
        for module in self.still:
            module.eval()
        return self


def _perceptron(width: int, hidden: int, dim: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, dim))


# -------------------------------------------------------------------------------------------- adapters


def adapt(net: nn.Module, rank: int, name: str) -> None:
    """Freeze ``net`` and put adapters of ``rank`` (scale α / r = 1) on its adaptable layers; at first they add 0."""
    from peft import LoraConfig, inject_adapter_in_model  # slow to import, needed here only

    names = adaptable(net)
    if not names:
        raise UserError(f"{name}: lora finds no linear layer or 1 x 1 convolution; take frozen: true, or another model")
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules="|".join(map(re.escape, names)))
    inject_adapter_in_model(config, net)


def adaptable(net: nn.Module) -> list[str]:
    """Names of the linear layers (hence those of attention) and 1 × 1 convolutions.

    Of exactly these types: what is derived from them may use its weight in another way than by a product, such as
    the output layer of ``nn.MultiheadAttention`` or a convolution with standardised weights. BEiT and EVA do so with
    a plain layer, ``qkv``: its adapter never moves.
    """
    from transformers.pytorch_utils import Conv1D  # GPT-2's linear layer

    return [
        name
        for name, module in net.named_modules()
        if type(module) in (nn.Linear, Conv1D)
        or (type(module) is nn.Conv2d and module.kernel_size == (1, 1) and module.groups == 1)
    ]


def merge(encoder: Encoder) -> None:
    """Add the adapters to the weights they adapt, as if the encoder had been built without ``lora`` or ``frozen``."""
    from peft.tuners.lora import LoraLayer

    for name, layer in [pair for pair in encoder.named_modules() if isinstance(pair[1], LoraLayer)]:
        layer.merge()
        encoder.set_submodule(name, layer.get_base_layer())
    if isinstance(encoder, Backbone):
        encoder.net.frozen = frozenset()


# ------------------------------------------------------------------------------------------ state dict


def _leave_out_frozen(net: Any) -> None:
    learns = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    net.frozen = frozenset(net.state_dict()) - learns
    net.register_state_dict_post_hook(_drop)
    net.register_load_state_dict_pre_hook(_fill_in)


def _drop(net: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in net.frozen:
        del state[prefix + name]


def _fill_in(net: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    tensors = dict(net.named_parameters(remove_duplicate=False)) | dict(net.named_buffers(remove_duplicate=False))
    for name in net.frozen:
        state.setdefault(prefix + name, tensors[name])


# -------------------------------------------------------------------------------------------- features

SLICE = 32
ROWS = 40_000
"""Kept at most; 200 MB at 1,280 features."""

_KNOWN: dict[bytes, Tensor] = {}


@torch.no_grad()
def recall(net: str, features: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``features(x)`` ``[B, width]``, where a row that this process has met is not worked out again.

    Rows go through the net in slices of one size, so that no digit depends on what else was asked for.
    """
    label = f"{net} {tuple(x.shape[1:])} {x.dtype}".encode()
    keys = [hashlib.blake2b(label + row.tobytes(), digest_size=16).digest() for row in x.cpu().numpy()]
    found = {key: _KNOWN.pop(key) for key in dict.fromkeys(keys) if key in _KNOWN}  # and back at the end, as the newest
    new = [row for row, key in enumerate(keys) if key not in found]
    for start in range(0, len(new), SLICE):
        rows = new[start : start + SLICE]
        filled = rows + rows[:1] * (SLICE - len(rows))
        found.update(zip([keys[row] for row in rows], features(x[filled]).cpu().unbind(), strict=False))
    _KNOWN.update(found)
    while len(_KNOWN) > ROWS:
        del _KNOWN[next(iter(_KNOWN))]
    return torch.stack([found[key] for key in keys]).to(x.device)
