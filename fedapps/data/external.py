"""Data sets of others, through Hugging Face ``datasets``: ``hf:<id>`` and ``path:<file or folder>``.

Columns get canonical names: ``image``, ``text``, ``label``, ``concept``, ``mask``, or any other name for a
further label. Pictures are decoded when they are read, so a set as large as COCO need not fit in memory.
Where a row has a list of captions, each caption becomes a row; ``picture`` numbers the pictures.
"""

from __future__ import annotations

import contextlib
import io
import socket
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import getproxies

import datasets
import huggingface_hub
import numpy as np
import torch
from PIL import Image

from fedapps.data.samples import Column, Lazy, Samples
from fedapps.errors import UserError

CANONICAL = ("image", "text", "label", "concept", "mask")
PICTURES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif"}
BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}
TEST_SPLITS = ("test", "validation", "val")


def load(name: str, split: str, data_path: str | None, columns: dict[str, str], size: int | None) -> Samples:
    """One split with canonical columns. Raises ``UserError`` naming what is missing and what would help."""
    tables, folder = _tables(name, data_path)
    wanted = ("train",) if split == "train" else TEST_SPLITS
    found = next((key for key in wanted if key in tables), None)
    if found is None:
        here = ", ".join(tables)
        raise UserError(f"data: '{name}' has no {split} split, only {here}: name files or folders '{split}'")
    mapping = columns or {key: key for key in CANONICAL if key in tables[found].column_names}
    for key, source in mapping.items():
        if source not in tables[found].column_names:
            here = ", ".join(tables[found].column_names)
            raise UserError(f"data: '{name}' has no column '{source}' (wanted as '{key}'); it has {here}")
    if not mapping:
        here, first = ", ".join(tables[found].column_names), tables[found].column_names[0]
        raise UserError(f"data: '{name}' has the columns {here}: say which is which, e.g. columns: {{image: {first}}}")
    return _samples(name, tables, found, mapping, folder, size)


# ---------------------------------------------------------------------------------------- tables


def _tables(name: str, data_path: str | None) -> tuple[datasets.DatasetDict, Path]:
    """All splits, and the folder that relative picture paths start from."""
    kind, _, rest = name.partition(":")
    if kind == "path":
        path = Path(data_path or ".", rest).expanduser()
        if not path.exists():
            raise UserError(
                f"data: there is no {path.absolute()} for '{name}'; a node's `data-path` says where data lie"
            )
        return _local(str(path.absolute()))
    if data_path is not None:
        base = Path(data_path).expanduser()
        own = base / rest.split(":")[0].split("/")[-1]
        path = own if own.exists() else base
        if not path.exists():
            raise UserError(f"data: there is no folder {path.absolute()} (data-path) for '{name}'")
        return _local(str(path.absolute()))
    return _hub(rest), Path()


@lru_cache(maxsize=4)
def _hub(name: str) -> datasets.DatasetDict:
    dataset, _, configuration = name.partition(":")
    _skip_hopeless_retries()
    try:
        return datasets.load_dataset(dataset, configuration or None)
    except Exception as error:  # the library raises a dozen kinds for: offline, unknown, gated, no configuration
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"data: 'hf:{name}' cannot be had from the Hugging Face hub ({reason}): give a local copy as "
            f"'path:<folder>', or as `data-path` of the node"
        ) from error


def _skip_hopeless_retries() -> None:
    """Without a name server the library retries for half a minute: tell it that it is offline (its cache works)."""
    host = urlparse(datasets.config.HF_ENDPOINT).hostname
    if not datasets.config.HF_HUB_OFFLINE and not getproxies():
        try:
            socket.getaddrinfo(host, 443)
        except OSError:
            datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """No progress bars: reading local files is quick."""
    if datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


@lru_cache(maxsize=4)
@_silent()
def _local(where: str) -> tuple[datasets.DatasetDict, Path]:
    path = Path(where)
    try:
        if path.is_file():
            if path.suffix not in BUILDERS:
                raise UserError(f"data: {path} is none of {', '.join(BUILDERS)}")
            builder = datasets.load_dataset(BUILDERS[path.suffix], data_files={_split_of(path): str(path)})
            return builder, path.parent
        if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
            stored = datasets.load_from_disk(str(path))
            whole = stored if isinstance(stored, datasets.DatasetDict) else datasets.DatasetDict(train=stored)
            return whole, path
        return datasets.load_dataset(_builder(path), data_dir=str(path)), path
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"data: {path} cannot be read as a data set: {reason}") from error


def _split_of(path: Path) -> str:
    return next((name for name in TEST_SPLITS if path.stem.startswith(name)), "train")


def _builder(path: Path) -> str:
    """The builder for the files below a folder: the first table format there is, else pictures."""
    suffixes = {file.suffix.lower() for file in path.rglob("*") if file.is_file()}
    pictures = bool(suffixes & PICTURES)
    for suffix, builder in BUILDERS.items():
        if suffix in suffixes and not (pictures and any(path.rglob(f"metadata{suffix}"))):
            return builder
    if pictures:
        return "imagefolder"
    raise UserError(f"data: {path} holds neither {', '.join(BUILDERS)} nor pictures")


# --------------------------------------------------------------------------------------- columns


def _samples(
    name: str, tables: datasets.DatasetDict, split: str, mapping: dict[str, str], folder: Path, size: int | None
) -> Samples:
    table = tables[split]
    repeat = np.arange(len(table))
    texts: list[Any] = list(table[mapping["text"]]) if "text" in mapping else []
    if texts and isinstance(texts[0], list):
        repeat = np.repeat(repeat, [len(captions) for captions in texts])
        texts = [caption for captions in texts for caption in captions]
    columns: dict[str, Any] = {"text": [str(text) for text in texts]} if "text" in mapping else {}
    classes: dict[str, list[str]] = {}
    for key, source in mapping.items():
        if key in ("image", "mask"):
            read = partial(_pictures, table, source, folder, size, key, name)
            columns[key] = Lazy(read, len(table)).select(repeat)
        elif key == "concept" and table.features[source].dtype.startswith(("int", "uint")):
            columns[key] = np.asarray(table[source], dtype=np.int64)[repeat]
        elif key != "text":
            classes[key], values = _labels(name, tables, split, source)
            columns[key] = values[torch.from_numpy(repeat)] if isinstance(values, torch.Tensor) else values[repeat]
    columns["picture"] = repeat
    columns.setdefault("concept", repeat)
    return Samples(len(repeat), columns, classes)


def _labels(name: str, tables: datasets.DatasetDict, split: str, source: str) -> tuple[list[str], Column]:
    """Class names over all splits, and int64 ``[n]``, or float32 ``[n, K]`` where a row has a list of labels."""
    feature = tables[split].features[source]
    several = isinstance(feature, datasets.Sequence | datasets.LargeList | list)
    inner = getattr(feature, "feature", feature[0] if isinstance(feature, list) else feature) if several else feature
    values = list(tables[split][source])
    if isinstance(inner, datasets.ClassLabel):
        names, numbers = list(inner.names), {i: i for i in range(len(inner.names))}
    else:
        everywhere = [value for key in tables for value in tables[key][source]]
        known = {value for row in everywhere for value in (row if several else [row])}
        if None in known or any(isinstance(value, float | list | dict) for value in known):
            raise UserError(f"data: column '{source}' of '{name}' is no label: whole numbers or names, none missing")
        ordered: list[Any] = sorted(known)
        if ordered and isinstance(ordered[0], int) and ordered[0] >= 0:
            ordered = list(range(ordered[-1] + 1))
        names, numbers = [str(value) for value in ordered], {value: i for i, value in enumerate(ordered)}
    if not several:
        return names, np.array([numbers[value] for value in values], dtype=np.int64)
    table = torch.zeros(len(values), len(names))
    for row, labels in enumerate(values):
        table[row, [numbers[label] for label in labels]] = 1.0
    return names, table


# -------------------------------------------------------------------------------------- pictures


def _pictures(
    table: datasets.Dataset, source: str, folder: Path, size: int | None, key: str, name: str, rows: np.ndarray
) -> torch.Tensor:
    """uint8 ``[B, 3, H, W]`` of pictures, int64 ``[B, H, W]`` of masks."""
    arrays = [_decode(value, folder, size, key) for value in table[rows.tolist()][source]]
    if len({array.shape for array in arrays}) > 1:
        raise UserError(f"data: the pictures of '{name}' differ in size: set `image-size` to bring them to one")
    stack = torch.from_numpy(np.stack(arrays))
    return stack.permute(0, 3, 1, 2).contiguous() if key == "image" else stack.long()


def _decode(value: Any, folder: Path, size: int | None, key: str) -> np.ndarray:
    """uint8 ``[H, W, 3]`` (mask: ``[H, W]``); with ``size``: the short side brought to it, the middle cut out."""
    if isinstance(value, str):
        value = Image.open(folder / value)
    elif isinstance(value, dict):
        value = Image.open(io.BytesIO(value["bytes"]) if value.get("bytes") else folder / value["path"])
    elif isinstance(value, list):
        value = Image.fromarray(np.asarray(value, dtype=np.uint8))
    if key == "image":
        value = value.convert("RGB")
    elif value.mode not in ("L", "P"):
        value = value.convert("L")
    if size is not None:
        # Pixel labels have no values in between: no interpolation for masks.
        filter_ = Image.Resampling.BILINEAR if key == "image" else Image.Resampling.NEAREST
        scale = size / min(value.size)
        width, height = (max(size, round(side * scale)) for side in value.size)
        left, top = (width - size) // 2, (height - size) // 2
        value = value.resize((width, height), filter_).crop((left, top, left + size, top + size))
    return np.array(value)
