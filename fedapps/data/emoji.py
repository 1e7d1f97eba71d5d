"""The embedded picture set ``emoji``: 1,520 concepts drawn by six vendors, 32×32 pixels, with captions.

One row per picture; the rows of a split are in the order of the vendors, then of the concepts.

| column | holds |
|---|---|
| ``image`` | uint8 tensor ``[N, 3, 32, 32]``, over white |
| ``text`` | caption: the name and the tags that say more than it |
| ``name``, ``tags`` | ``list[str]``, ``list[list[str]]`` |
| ``concept`` | int64 ``[N]``: what is drawn; the same number in all vendors and both splits |
| ``vendor``, ``group``, ``subgroup``, ``author`` | int64 ``[N]``: 6, 9, 98, 96 classes (author: of OpenMoji's) |
| ``subgroup:K`` | int64 ``[N]``: the K subgroups with most training concepts; the other rows have none |
| ``tags:K`` | float32 ``[N, K]``: which of the K commonest training tags a concept has (K to 100) |
| ``mask`` | int64 ``[N, 32, 32]``: 1 where there is a drawing |
| ``scene`` | int64 ``[N, 32, 32]``: 0 background, 1 + group where there is a drawing |
| ``parts`` | int64 ``[N, 32, 32]``: OpenMoji's layers; the rows of other vendors have none |

The test set holds the pictures of 294 concepts, by all vendors; training never sees one of these concepts.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fedapps.data.samples import Column, Lazy, Samples

FOLDER = Path(__file__).parent / "emoji"
VENDORS = ["openmoji", "twemoji", "noto", "fluent-emoji-flat", "emojione", "noto-v1"]
PARTS = ["background", "fill", "skin", "hair", "line"]
TILE, COLUMNS = 32, 32  # pixels of a tile, tiles in a row of a sheet
MOST_TAGS = 100


def load(split: str) -> Samples:
    """6,502 train rows (1,226 concepts) or 1,561 test rows (294 concepts)."""
    whole, border = _everything()
    return whole.select(slice(0, border) if split == "train" else slice(border, None))


@cache
def _everything() -> tuple[Samples, int]:
    """All rows and the number of training rows, which come first: the two splits are views of the same memory."""
    concepts = [json.loads(line) for line in (FOLDER / "concepts.jsonl").read_text("utf-8").splitlines()]
    sheets = {vendor: json.loads((FOLDER / f"{vendor}.json").read_text("utf-8")) for vendor in VENDORS}
    index = np.concatenate([sheets[vendor]["concepts"] for vendor in VENDORS]).astype(np.int64)
    vendor = np.repeat(np.arange(len(VENDORS)), [len(sheets[name]["concepts"]) for name in VENDORS])
    held_out = np.array([c["test"] for c in concepts])[index]
    order = np.argsort(held_out, kind="stable")
    index, vendor = index[order], vendor[order]

    columns: dict[str, Column | Callable[[], Column]] = {
        "image": partial(_images, sheets, order),
        "text": partial(_spread, [caption(c["name"], c["tags"]) for c in concepts], index),
        "name": partial(_spread, [c["name"] for c in concepts], index),
        "tags": partial(_spread, [c["tags"] for c in concepts], index),
        "concept": index,
        "vendor": vendor,
    }
    classes = {"vendor": VENDORS}
    for key in ("group", "subgroup", "author"):
        classes[key], columns[key] = _labels([c[key] for c in concepts], index)

    absent: dict[str, np.ndarray] = {}
    training = [c for c in concepts if not c["test"]]
    _add_commonest_subgroups(columns, classes, absent, training)
    _add_tags(columns, classes, concepts, training, index)

    masks = cache(lambda: torch.from_numpy(_tiles(sheets, "masks")[order].astype(np.uint8)))
    group = torch.from_numpy(columns["group"])  # type: ignore[arg-type]
    size = len(index)
    columns["mask"] = Lazy(lambda rows: masks()[rows].long(), size)
    columns["scene"] = Lazy(lambda rows: masks()[rows].long() * (group[rows] + 1)[:, None, None], size)
    classes |= {"mask": ["background", "drawing"], "scene": ["background", *classes["group"]], "parts": PARTS}

    absent["parts"] = vendor != VENDORS.index("openmoji")
    layers = cache(lambda: torch.from_numpy(_tiles({"openmoji": sheets["openmoji"]}, "parts")))
    # OpenMoji is the first vendor and has every concept: a row's tile in its sheet is the concept's number.
    columns["parts"] = Lazy(lambda rows: layers()[index[rows]].long(), size)
    return Samples(size, columns, classes, absent), int((~held_out).sum())


def caption(name: str, tags: list[str]) -> str:
    """``grinning face: cheerful, cheery, grin, happy``: the name, then the tags whose words it does not have."""
    words = set(re.findall(r"\w+", name.lower()))
    more = [tag for tag in tags if not set(re.findall(r"\w+", tag.lower())) <= words]
    return f"{name}: {', '.join(more)}" if more else name


def _spread(values: list[Any], index: np.ndarray) -> list[Any]:
    return [values[i] for i in index]


def _labels(values: list[str], index: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Class names in the order in which they first come, and the class of each row."""
    names = list(dict.fromkeys(values))
    numbers = {name: i for i, name in enumerate(names)}
    return names, np.array([numbers[value] for value in values], dtype=np.int64)[index]


def _commonest(values: list[str]) -> list[str]:
    """Distinct values, the most frequent first, ties by the alphabet."""
    counts = Counter(values)
    return sorted(counts, key=lambda value: (-counts[value], value))


def _add_commonest_subgroups(columns: dict, classes: dict, absent: dict, training: list[dict]) -> None:
    ranked = _commonest([c["subgroup"] for c in training])
    rank = np.array([ranked.index(name) for name in classes["subgroup"]])[columns["subgroup"]]
    for count in range(2, len(ranked)):
        name = f"subgroup:{count}"
        classes[name], absent[name] = ranked[:count], rank >= count
        columns[name] = np.where(rank < count, rank, -1)


def _add_tags(columns: dict, classes: dict, concepts: list[dict], training: list[dict], index: np.ndarray) -> None:
    ranked = _commonest([tag for c in training for tag in set(c["tags"])])[:MOST_TAGS]
    table = torch.tensor([[tag in c["tags"] for tag in ranked] for c in concepts], dtype=torch.float32)
    for count in range(1, MOST_TAGS + 1):
        name = f"tags:{count}"
        classes[name] = ranked[:count]
        columns[name] = partial(lambda k: table[:, :k][index], count)


def _images(sheets: dict[str, dict], order: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(_tiles(sheets, "images")[order].transpose(0, 3, 1, 2)))


def _tiles(sheets: dict[str, dict], key: str) -> np.ndarray:
    """``[n, 32, 32]`` or ``[n, 32, 32, 3]``: the tiles of all sheets, one vendor after the other."""
    found = []
    for sheet in sheets.values():
        image = Image.open(io.BytesIO(base64.b64decode(sheet[key])))
        pixels = np.asarray(image.convert("RGB") if key == "images" else image)
        rows = pixels.shape[0] // TILE
        tiles = pixels.reshape(rows, TILE, COLUMNS, TILE, *pixels.shape[2:]).swapaxes(1, 2)
        found.append(tiles.reshape(-1, TILE, TILE, *pixels.shape[2:])[: len(sheet["concepts"])])
    return np.concatenate(found)
