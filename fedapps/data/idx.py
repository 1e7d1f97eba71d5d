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

NAME = re.compile(
    r"(?P<set>(?:.*[^A-Za-z0-9])?)(?P<mark>train|test|t10k).*(?P<what>images|labels)[-.]idx\d-ubyte(\.gz)?"
)
SPLITS = {"train": ("train",), "test": ("test", "t10k")}
COLUMNS = {"image": "images", "label": "labels"}


def set_of(path: Path) -> str | None:
    """The set of a file, or the only one in a folder: what stands in names before the split, such as
    ``emnist-letters-`` or nothing; ``None`` where there are no idx files. ``UserError`` that names one file of each
    where a folder has several."""
    if path.is_file():
        name = NAME.fullmatch(path.name)
        return name and name["set"]
    firsts = {name["set"]: file.name for name, file in reversed(_named(path))}
    if len(firsts) > 1:
        several = ", ".join(sorted(firsts.values()))
        raise UserError(f"data: {path} has idx files of several sets: name a file of the one wanted, of {several}")
    return next(iter(firsts), None)


def files(path: Path, which: str, split: str) -> dict[str, Path]:
    """``{"images": file, "labels": file}`` of a split of the set ``which`` in a folder, as far as they are there."""
    mine = [(name, file) for name, file in _named(path) if name["set"] == which and name["mark"] in SPLITS[split]]
    return {name["what"]: file for name, file in reversed(mine)}


def _named(folder: Path) -> list[tuple[re.Match[str], Path]]:
    """The idx files in a folder, sorted, each with the parts of its name."""
    named = [(NAME.fullmatch(file.name), file) for file in sorted(folder.glob("*ubyte*"))]
    return [(name, file) for name, file in named if name and file.is_file()]


def load(path: Path, which: str, split: str, columns: dict[str, str], size: int | None) -> Samples:
    """One split of the set ``which`` in a folder: ``image`` uint8 ``[N, 3, H, W]`` (grey in all three channels) and
    ``label``, whose classes are those of both splits, named by their numbers. ``size``: side in pixels that pictures
    are brought to.

    Raises ``UserError`` for missing, broken or empty files and for ``columns`` other than these two. Where there are
    training files only, the test split is empty.
    """
    found = files(path, which, split)
    if split == "test" and not found and files(path, which, "train"):  # a site may have no test data
        return load(path, which, "train", columns, size).select(slice(0, 0))
    if missing := [what for what in COLUMNS.values() if what not in found]:
        kind = 3 if missing[0] == "images" else 1
        like = f"{which}{split}-{missing[0]}-idx{kind}-ubyte.gz"
        raise UserError(f"data: {path} has no {split} {missing[0]}, such as {like}")
    for key, source in columns.items():
        if source not in COLUMNS:
            raise UserError(f"data: {path} has no column '{source}' (wanted as '{key}'); idx files have image, label")
    raw = {what: _read(file, dims=3 if what == "images" else 1) for what, file in found.items()}
    if len(raw["images"]) != len(raw["labels"]):
        counts = f"{len(raw['images'])} pictures and {len(raw['labels'])} labels"
        raise UserError(f"data: {path} has {counts} for {split}")
    if not len(raw["labels"]):
        raise UserError(f"data: {found['images']} is empty: there is no picture for {split}")
    labels = raw["labels"].astype(np.int64)
    made: dict[str, Column] = {"image": _pictures(raw["images"], size), "label": labels}
    mapping = columns or {key: key for key in COLUMNS}
    rows = np.arange(len(labels))
    others = (files(path, which, other).get("labels") for other in SPLITS if other != split)
    highest = max(int(each.max(initial=0)) for each in (labels, *(_read(file, dims=1) for file in others if file)))
    names = [str(number) for number in range(highest + 1)]
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
