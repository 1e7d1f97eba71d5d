"""Pictures and labels in idx files, as MNIST, Fashion-MNIST and EMNIST come: ``train-images-idx3-ubyte[.gz]``, …"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedapps.data.samples import Column, Samples, middle
from fedapps.errors import UserError

NAME = re.compile(r"(?P<what>images|labels)[-.]idx\d-ubyte(\.gz)?$")
SPLITS = {"train": ("train",), "test": ("test", "t10k")}
COLUMNS = {"image": "images", "label": "labels"}


def files(path: Path, split: str | None = None) -> dict[str, Path]:
    """``{"images": file, "labels": file}`` of a split (``None``: of any) in a folder; empty if it has none."""
    marks = [mark for key, marks in SPLITS.items() if split in (None, key) for mark in marks]
    found = {file: NAME.search(file.name) for file in sorted(path.glob("*ubyte*"), reverse=True)}
    return {
        name["what"]: file
        for file, name in found.items()
        if name and any(mark in file.name[: name.start()] for mark in marks)
    }


def load(path: Path, split: str, columns: dict[str, str], size: int | None) -> Samples:
    """One split: ``image`` uint8 ``[N, 3, H, W]`` (grey in all three channels) and ``label``, whose classes are
    named by their numbers. ``size``: side in pixels that pictures are brought to.

    Raises ``UserError`` for missing or broken files and for ``columns`` other than these two.
    """
    found = files(path, split)
    if missing := [what for what in COLUMNS.values() if what not in found]:
        kind = 3 if missing[0] == "images" else 1
        raise UserError(f"data: {path} has no {split} {missing[0]}, such as {split}-{missing[0]}-idx{kind}-ubyte.gz")
    for key, source in columns.items():
        if source not in COLUMNS:
            raise UserError(f"data: {path} has no column '{source}' (wanted as '{key}'); idx files have image, label")
    raw = {what: _read(file, dims=3 if what == "images" else 1) for what, file in found.items()}
    if len(raw["images"]) != len(raw["labels"]):
        counts = f"{len(raw['images'])} pictures and {len(raw['labels'])} labels"
        raise UserError(f"data: {path} has {counts} for {split}")
    labels = raw["labels"].astype(np.int64)
    made: dict[str, Column] = {"image": _pictures(raw["images"], size), "label": labels}
    mapping = columns or {key: key for key in COLUMNS}
    rows = np.arange(len(labels))
    names = [str(number) for number in range(int(labels.max()) + 1)]
    return Samples(
        len(rows),
        {**{key: made[source] for key, source in mapping.items()}, "concept": rows, "picture": rows},
        {key: names for key, source in mapping.items() if source == "label"},
    )


def _pictures(grey: np.ndarray, size: int | None) -> Column:
    if size is not None:
        pictures = [middle(Image.fromarray(one), size, Image.Resampling.BILINEAR) for one in grey]
        grey = np.stack([np.asarray(picture) for picture in pictures])
    return torch.from_numpy(grey).unsqueeze(1).expand(-1, 3, -1, -1)


def _read(file: Path, dims: int) -> np.ndarray:
    """The bytes of an idx file in their shape: two zeros, 8 (uint8), the number of sizes, the sizes, the bytes."""
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        head = 4 + 4 * dims
        shape = np.frombuffer(content[4:head], ">u4").astype(int)
        if content[:4] != bytes([0, 0, 8, dims]):
            raise ValueError("another head")
        return np.frombuffer(content, np.uint8, offset=head).reshape(shape).copy()
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"data: {file} is no idx file of {dims}-dimensional bytes ({error})") from error
