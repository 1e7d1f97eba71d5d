"""Rows of one data set in parallel columns."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image

from fedapps.errors import UserError
from fedapps.hints import nearest


class Lazy:
    """A column whose rows are made when they are read: ``column[indices] -> Tensor [B, ...]``.

    ``read`` takes an int64 array of row numbers within the column and gives one tensor row for each.
    """

    def __init__(self, read: Callable[[np.ndarray], torch.Tensor], size: int) -> None:
        self.read, self.size = read, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> torch.Tensor:
        """``index``: int64 numpy array or tensor, bool mask, list or slice."""
        index = index if isinstance(index, slice) else np.asarray(index)
        return self.read(np.atleast_1d(np.arange(self.size)[index]))

    def select(self, rows: np.ndarray) -> Lazy:
        return Lazy(lambda index: self.read(rows[index]), len(rows))


Column = torch.Tensor | np.ndarray | list[str] | list[list[str]] | Lazy


@dataclass(frozen=True, eq=False)
class Samples:
    """Rows of one data set: columns of equal length, read as ``samples["image"][indices]``.

    | column | holds |
    |---|---|
    | ``image`` | uint8 ``[N, 3, H, W]``, a tensor or ``Lazy`` |
    | ``text``, ``name`` | ``list[str]`` |
    | class labels, ``concept`` | int64 array ``[N]``; ``classes[column]`` names their values |
    | labels of pixels | ``Lazy``, int64 ``[N, H, W]`` |
    | several labels a row | float32 tensor ``[N, K]`` of 0 and 1 |

    A column may stand as a function without arguments that makes it; it is called on first use. ``absent``
    holds, for columns that not every row has, the rows that have none (bool ``[N]``).
    """

    size: int
    columns: dict[str, Column | Callable[[], Column]] = field(repr=False)
    classes: dict[str, list[str]] = field(default_factory=dict, repr=False)
    absent: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return self.size

    def __contains__(self, column: object) -> bool:
        return column in self.columns

    def __getitem__(self, column: str) -> Column:
        """The column by name. Raises ``UserError`` with the nearest name, or all of them."""
        if column not in self.columns:
            raise UserError(f"there is no column '{column}' in the data{nearest(column, self._shown())}")
        value = self.columns[column]
        if callable(value):
            value = self.columns[column] = value()
        return value

    def _shown(self) -> set[str]:
        """The column names, a family such as ``tags:1``, ``tags:2``, … as ``tags:K``."""
        return {re.sub(r":\d+$", ":K", name) for name in self.columns}

    def rows_with(self, column: str) -> np.ndarray:
        """The numbers of the rows that have ``column``: int64, ascending; most columns are there in all rows."""
        if column not in self.columns:
            self[column]
        missing = self.absent.get(column)
        return np.arange(self.size) if missing is None else np.flatnonzero(~missing)

    def select(self, rows: np.ndarray | slice) -> Samples:
        """The same columns with these rows, in this order (a slice shares memory)."""
        numbers = np.arange(self.size)[rows]
        rows = rows if isinstance(rows, slice) else numbers
        return Samples(
            len(numbers),
            {name: partial(_take, self, name, rows, numbers) for name in self.columns},
            self.classes,
            {name: missing[rows] for name, missing in self.absent.items()},
        )


def _take(samples: Samples, name: str, rows: np.ndarray | slice, numbers: np.ndarray) -> Column:
    column = samples[name]
    if isinstance(column, list):
        return [column[i] for i in numbers]  # type: ignore[return-value]
    return column.select(numbers) if isinstance(column, Lazy) else column[rows]


def gallery(samples: Samples, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(image rows, text rows)`` of ``rows``: each picture once, and each caption of a concept once.

    A set with several captions a picture repeats the picture in its rows (they agree in ``picture``), one
    with several pictures a concept repeats the caption; a retrieval test must rank each only once.
    """
    rows, concept, text = np.asarray(rows), samples["concept"], samples["text"]
    assert isinstance(concept, np.ndarray) and isinstance(text, list)
    pictures = np.asarray(samples["picture"])[rows] if "picture" in samples else rows
    first = np.sort(np.unique(pictures, return_index=True)[1])
    captions: dict[tuple[int, str], int] = {}
    for row in rows.tolist():
        captions.setdefault((int(concept[row]), str(text[row])), row)
    return rows[first], np.array(list(captions.values()), dtype=np.int64)


def middle(picture: Image.Image, size: int, resample: Image.Resampling) -> Image.Image:
    """The short side brought to ``size`` pixels, the middle ``size`` × ``size`` cut out."""
    scale = size / min(picture.size)
    width, height = (max(size, round(side * scale)) for side in picture.size)
    left, top = (width - size) // 2, (height - size) // 2
    return picture.resize((width, height), resample).crop((left, top, left + size, top + size))


def blocks(column: torch.Tensor | np.ndarray | Lazy) -> Iterator[Any]:
    """All rows, 512 at a time. ``UserError`` for pictures that differ in size from one block to the next."""
    shapes = set()
    for start in range(0, len(column), 512):
        block = column[start : start + 512]
        shapes.add(tuple(block.shape[1:]))
        if len(shapes) > 1:
            raise UserError("data: pictures differ in size: set `image-size` to bring them to one")
        yield block


def read_once(samples: Samples, *columns: str) -> None:
    """Read what is decoded on demand: a broken picture is told before training, at the price of an epoch's reading."""
    for name in columns:
        column = samples[name]
        if isinstance(column, Lazy):
            for _ in blocks(column):
                pass


def digest(samples: Samples, columns: Sequence[str]) -> str:
    """sha256 (hex) over the content of ``columns``: equal for the same rows in the same order, on any machine."""
    total = hashlib.sha256()
    for name in columns:
        column = samples[name]
        total.update(f"{name}\0{len(column)}\0".encode())
        if isinstance(column, list):
            for value in column:
                data = "\0".join(value if isinstance(value, list) else [value]).encode()
                total.update(len(data).to_bytes(8, "little") + data)
            continue
        for number, rows in enumerate(blocks(column)):
            block = np.ascontiguousarray(rows)
            block = block.astype(block.dtype.newbyteorder("<"), copy=False)
            if number == 0:
                total.update(f"{block.dtype.str}\0{block.shape[1:]}\0".encode())
            total.update(block.tobytes())
    return total.hexdigest()
