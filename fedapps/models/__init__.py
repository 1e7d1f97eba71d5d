"""Models by name: an encoder for each modality, a head for the task.

Images: ``cnn``, ``cnn-1`` … ``cnn-5`` (FedMRL's), ``resnet18``, ``resnet50``, ``resnet101``, ``lite0`` (pretrained by a
package), ``timm:<name>``. Text: ``bag``, ``bigru``, ``transformer``, ``minilm`` (pretrained by a package),
``hf:<name or folder>``. Both: ``unified``. One's own: ``module:function``, called with ``dim=`` and the options,
returns an ``Encoder``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from fedapps.errors import UserError
from fedapps.hints import nearest
from fedapps.models.base import Encoder, ImageEncoder, Model, TextEncoder
from fedapps.models.fusion import GFF
from fedapps.models.heads import LogitHead, SegmentationHead, head_of
from fedapps.models.image import Cnn, MrlCnn, ResNet, Timm
from fedapps.models.options import call
from fedapps.models.packages import LITE0, MINILM
from fedapps.models.text import Bag, BiGru, HuggingFace, Transformer
from fedapps.models.unified import UnifiedImage, UnifiedText

__all__ = [
    "GFF",
    "Encoder",
    "ImageEncoder",
    "LogitHead",
    "Model",
    "SegmentationHead",
    "TextEncoder",
    "build_encoder",
    "head_of",
]

MODELS: dict[str, dict[str, Callable[..., Encoder]]] = {
    "image": {
        "cnn": Cnn,
        **{f"cnn-{number}": partial(MrlCnn, number) for number in MrlCnn.WIDTHS},
        **{name: partial(ResNet, name) for name in ("resnet18", "resnet50", "resnet101")},
        "lite0": partial(Timm, "tf_efficientnet_lite0", pretrained=LITE0),
        "unified": UnifiedImage,
    },
    "text": {
        "bag": Bag,
        "bigru": BiGru,
        "transformer": Transformer,
        "minilm": partial(HuggingFace, MINILM, pooling="mean"),
        "unified": UnifiedText,
    },
}
LIBRARIES: dict[str, tuple[str, Callable[..., Encoder]]] = {
    "image": ("timm", Timm),
    "text": ("hf", HuggingFace),
}


def build_encoder(modality: str, name: str, dim: int, /, **options: Any) -> Encoder:
    """The encoder ``name`` with ``dim`` outputs; its initial values follow from ``torch.manual_seed``.

    UserError for an unknown name or option, a wrong value, or weights that are not to be had.
    """
    if modality not in MODELS:
        raise UserError(f"unknown modality '{modality}'{nearest(modality, MODELS)}")
    if "dim" in options:
        raise UserError(f"model {name}: dim is the scenario's, for all models; it cannot be set for one of them")
    encoder: Encoder = call(f"model {name}", _factory(modality, name), dim=dim, **options)
    encoder.made_from = f"{name} {sorted(options.items())}"
    return encoder


def _factory(modality: str, name: str) -> Callable[..., Encoder]:
    library, factory = LIBRARIES[modality]
    prefix, _, rest = name.partition(":")
    if name in MODELS[modality]:
        return MODELS[modality][name]
    if prefix == library:
        if not rest:
            raise UserError(f"model '{name}' does not say which of {library}'s models, expected {library}:<name>")
        return partial(factory, rest)
    for other in MODELS:
        if name in MODELS[other] or prefix == LIBRARIES[other][0]:
            raise UserError(f"model '{name}' is for {other}, not for {modality}")
    if rest:
        return partial(_own, name, modality)
    raise UserError(f"unknown {modality} model '{name}'{nearest(name, [*MODELS[modality], f'{library}:<name>'])}")


def _own(path: str, modality: str, /, dim: int, **options: Any) -> Encoder:
    """An encoder of the user's, from ``module:function``; whatever goes wrong in their code is told as theirs."""
    module, _, function = path.partition(":")
    try:
        factory = getattr(import_module(module), function)
    except Exception as error:
        raise UserError(
            f"model '{path}': {_told(error)}; expected module:function, installed beside fedapps"
        ) from error
    if not callable(factory):
        raise UserError(f"model '{path}' is no function but {factory!r}; expected module:function")
    try:
        encoder = call(f"model {path}", factory, dim=dim, **options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"model '{path}' failed: {_told(error)}") from error
    kind = ImageEncoder if modality == "image" else TextEncoder
    if not isinstance(encoder, kind) or encoder.dim != dim:
        raise UserError(f"model '{path}' must return a fedapps.models.{kind.__name__} with dim {dim}")
    return encoder


def _told(error: Exception) -> str:
    """An error of other people's code in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
