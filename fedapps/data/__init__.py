"""Data sets by name.

| name | holds |
|---|---|
| ``emoji`` | 8,063 pictures of 1,520 concepts by six vendors, with captions, labels and masks (embedded) |
| ``glosses`` | 10,000 dictionary definitions in 10 classes (embedded) |
| ``hf:<id>``, ``hf:<id>:<configuration>`` | a data set of the Hugging Face hub |
| ``path:<file or folder>`` | parquet, jsonl, json, csv, idx, a folder of pictures, or what ``save_to_disk`` wrote |
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from fedapps.data import emoji, glosses
from fedapps.data.samples import Column, Lazy, Samples, digest, gallery, read_once
from fedapps.errors import UserError
from fedapps.hints import nearest

__all__ = ["Column", "Lazy", "Samples", "digest", "gallery", "load", "read_once"]

EMBEDDED = {"emoji": emoji.load, "glosses": glosses.load}


def load(
    name: str,
    split: Literal["train", "test"],
    data_path: str | None = None,
    columns: dict[str, str] | None = None,
    image_size: int | None = None,
) -> Samples:
    """One split of a data set, kept for the process (do not change its columns).

    data_path: where this node keeps its data: the folder for ``hf:`` names, the base of relative ``path:``
        names; the embedded sets do not need it.
    columns: canonical name -> name in the data set, e.g. ``{"image": "img", "label": "fine_label"}``.
    image_size: side in pixels that pictures of ``hf:`` and ``path:`` are brought to.

    Raises ``UserError`` for an unknown name, data that is not there, or columns that do not fit.
    """
    if split not in ("train", "test"):
        raise UserError(f"data: a split is 'train' or 'test', not '{split}'")
    return _load(name, split, data_path, tuple(sorted((columns or {}).items())), image_size)


@lru_cache(maxsize=16)
def _load(
    name: str, split: str, data_path: str | None, columns: tuple[tuple[str, str], ...], image_size: int | None
) -> Samples:
    if name in EMBEDDED:
        if columns or image_size:
            raise UserError(f"data: '{name}' is embedded: `columns` and `image-size` are for hf: and path: data")
        return EMBEDDED[name](split)
    if name.startswith(("hf:", "path:")):
        from fedapps.data import external  # the datasets library takes a second to import

        return external.load(name, split, data_path, dict(columns), image_size)
    raise UserError(f"data: unknown data set '{name}'{nearest(name, [*EMBEDDED, 'hf:<id>', 'path:<file or folder>'])}")
