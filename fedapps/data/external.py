"""Data sets of others, through Hugging Face ``datasets``: ``hf:<id>`` and ``path:<file or folder>``.

Columns get canonical names: ``image``, ``text``, ``label``, ``concept``, ``mask``, or any other name for a
further label. Pictures are decoded when they are read, so a set as large as COCO need not fit in memory.
Where a row has a list of captions, each caption becomes a row; ``picture`` numbers the pictures.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
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
from datasets import data_files
from fsspec.utils import glob_translate
from PIL import Image

from fedapps.data import idx
from fedapps.data.samples import Column, Lazy, Samples, middle
from fedapps.errors import UserError

CANONICAL = {  # canonical name -> what well-known data sets call it
    "image": ("image", "img"),
    "text": ("text", "caption", "sentence"),
    "label": ("label", "fine_label"),
    "concept": ("concept",),
    "mask": ("mask",),
}
PICTURES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif"}
SIXTEEN = ("I;16", "I;16L", "I;16B", "I")  # Pillow's modes of grey pictures with 16 bits a pixel
BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}
TEST_SPLITS = ("test", "validation", "val")


def load(name: str, split: str, data_path: str | None, columns: dict[str, str], size: int | None) -> Samples:
    """One split with canonical columns. Raises ``UserError`` naming what is missing and what would help.

    Where there are training rows and no others, the test split is empty: a site may have none to spare.
    """
    where = _place(name, data_path)
    folder = Path() if where is None else where.parent if where.is_file() else where
    if where is not None and (idx_set := idx.set_of(where)) is not None:
        return idx.load(folder, idx_set, split, columns, size)
    tables = _hub(name.partition(":")[2]) if where is None else _local(str(where))
    tables = datasets.DatasetDict({key: table for key, table in tables.items() if len(table)})
    untested = split == "test" and list(tables) == ["train"]
    wanted = ("train",) if split == "train" or untested else TEST_SPLITS
    found = next((key for key in wanted if key in tables), None)
    if found is None:
        here = f"only {', '.join(tables)}" if tables else "nor any other"
        raise UserError(f"data: '{name}' has no {split} split, {here}: name files or folders '{split}'")
    mapping = columns or _usual(tables[found].column_names)
    for key, source in mapping.items():
        if source not in tables[found].column_names:
            here = ", ".join(tables[found].column_names)
            raise UserError(f"data: '{name}' has no column '{source}' (wanted as '{key}'); it has {here}")
    if not mapping:
        here, first = ", ".join(tables[found].column_names), tables[found].column_names[0]
        raise UserError(f"data: '{name}' has the columns {here}: say which is which, e.g. columns: {{image: {first}}}")
    samples = _samples(name, tables, found, mapping, folder, size)
    return samples.select(slice(0, 0)) if untested else samples


def _usual(names: list[str]) -> dict[str, str]:
    """The columns that can be told by their names, first match first."""
    found = {key: [name for name in known if name in names] for key, known in CANONICAL.items()}
    return {key: matches[0] for key, matches in found.items() if matches}


# ---------------------------------------------------------------------------------------- tables


def _place(name: str, data_path: str | None) -> Path | None:
    """Where a data set lies on this machine; ``None``: on the hub."""
    kind, _, rest = name.partition(":")
    last = rest.split(":")[0].split("/")[-1] if kind == "hf" else rest
    if not last.strip():
        raise UserError(f"data: '{name}' names no data set: write hf:<id> or path:<file or folder>")
    if kind == "path":
        if data_path is None and not os.path.isabs(os.path.expanduser(rest)):  # each process has its own folder
            raise UserError(f"data: '{name}' is a relative path: write it absolute, or set data-path=<its folder>")
        path = Path(data_path or ".").expanduser().absolute() / os.path.expanduser(rest)
        if not path.exists():
            raise UserError(f"data: there is no {path} for '{name}'; a node's `data-path` says where data lie")
        return path
    if data_path is None:
        return None
    base = Path(data_path).expanduser().absolute()
    if (base / last).exists():
        return base / last
    beside = sorted(base.iterdir()) if base.is_dir() else []
    if found := next((path for path in (*beside, base) if path.is_dir() and _plain(path.name) == _plain(last)), None):
        return found
    raise UserError(
        f"data: there is no folder {base / last} for '{name}': data-path must hold a folder of that name, or be it"
    )


def _plain(name: str) -> str:
    """A set's name in one of its spellings: ``fashion_mnist`` is ``Fashion-MNIST``."""
    return name.lower().replace("-", "").replace("_", "")


@lru_cache(maxsize=4)
def _hub(name: str) -> datasets.DatasetDict:
    dataset, _, configuration = name.partition(":")
    _skip_hopeless_retries()
    try:
        return datasets.load_dataset(dataset, configuration or None)
    except Exception as error:  # the library raises a dozen kinds for: offline, unknown, gated, no configuration
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"data: 'hf:{name}' cannot be had from the Hugging Face hub ({reason}): name a local copy as "
            f"path:<folder>, or set data-path=<folder that holds {dataset.split('/')[-1]}>"
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
def _local(where: str) -> datasets.DatasetDict:
    path = Path(where)
    try:
        if path.is_file():
            if path.suffix not in BUILDERS:
                raise UserError(f"data: {path} is none of {', '.join(BUILDERS)}")
            return _built(BUILDERS[path.suffix], data_files={_split_of(path): str(path)})
        if _saved(path):
            stored = datasets.load_from_disk(str(path))
            return stored if isinstance(stored, datasets.DatasetDict) else datasets.DatasetDict(train=stored)
        return _folder(path)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"data: {path} cannot be read as a data set: {reason}") from error


def _built(builder: str, **where: Any) -> datasets.DatasetDict:
    """As ``load_dataset``, which refuses a split without rows; here it is left out."""
    made = datasets.load_dataset_builder(builder, **where)
    made.download_and_prepare()
    filled = [split for split, about in made.info.splits.items() if about.num_examples]
    return datasets.DatasetDict({split: made.as_dataset(split) for split in filled})


def _split_of(path: Path) -> str:
    return next((name for name in TEST_SPLITS if path.stem.startswith(name)), "train")


def _saved(path: Path) -> bool:
    """Whether ``save_to_disk`` wrote this folder."""
    return (path / "dataset_dict.json").exists() or (path / "state.json").exists()


def _files(path: Path) -> list[Path]:
    """The files in a folder that may be data, sorted: neither hidden nor empty nor such as ``config.json``."""
    return sorted(
        file
        for file in path.glob("**/*")
        if file.name not in data_files.FILES_TO_IGNORE
        and not any(part.startswith((".", "__")) for part in file.relative_to(path).parts)
        and file.is_file()
        and file.stat().st_size
    )


def _folder(path: Path) -> datasets.DatasetDict:
    """What lies below a folder: the files of the first table format there is, else pictures."""
    files = _files(path)
    pictures = any(file.suffix.lower() in PICTURES for file in files)
    for suffix, builder in BUILDERS.items():
        tables = [file for file in files if file.suffix.lower() == suffix]
        if tables and not (pictures and any(file.stem == "metadata" for file in tables)):
            return _built(builder, data_files=_by_split(path, tables))
    if pictures:
        return _built("imagefolder", data_dir=str(path))
    raise UserError(f"data: {path} holds neither {', '.join(BUILDERS)} nor pictures")


def _by_split(path: Path, files: list[Path]) -> dict[str, list[str]]:
    """``files`` by split, as the library would tell them apart if no pictures lay beside them."""
    names = [file.relative_to(path).as_posix() for file in files]

    def matching(pattern: str) -> list[str]:
        return [name for name in names if re.match(glob_translate(pattern), name)]

    splits = data_files._get_data_files_patterns(matching)
    return {
        split: sorted({str(path / name) for pattern in patterns for name in matching(pattern)})
        for split, patterns in splits.items()
    }


# --------------------------------------------------------------------------------------- columns


def _samples(
    name: str, tables: datasets.DatasetDict, split: str, mapping: dict[str, str], folder: Path, size: int | None
) -> Samples:
    table = tables[split]
    repeat = np.arange(len(table))
    texts: list[Any] = list(table[mapping["text"]]) if "text" in mapping else []
    _none_missing(texts, f"data: column '{mapping.get('text')}' of '{name}' has no text", None)
    if texts and isinstance(texts[0], list):
        repeat = np.repeat(repeat, [len(captions) for captions in texts])
        texts = [caption for captions in texts for caption in captions]
    columns: dict[str, Any] = {"text": [str(text) for text in texts]} if "text" in mapping else {}
    classes: dict[str, list[str]] = {}
    for key, source in mapping.items():
        if key in ("image", "mask"):
            read = partial(_pictures, table, source, folder, size, key, name)
            columns[key] = Lazy(read, len(table)).select(repeat)
            if key == "mask":
                classes[key] = _mask_classes(name, tables, source, folder)
        elif key == "concept" and table.features[source].dtype.startswith(("int", "uint")):
            columns[key] = np.asarray(table[source], dtype=np.int64)[repeat]
        elif key != "text":
            classes[key], values = _labels(name, tables, split, key, source)
            columns[key] = values[torch.from_numpy(repeat)] if isinstance(values, torch.Tensor) else values[repeat]
    columns["picture"] = repeat
    columns.setdefault("concept", repeat)
    return Samples(len(repeat), columns, classes)


def _mask_classes(name: str, tables: datasets.DatasetDict, source: str, folder: Path) -> list[str]:
    """The classes of pixels over all splits, named by their numbers; 255 is none."""
    most = 0
    for table in tables.values():
        for row in range(len(table)):
            values = _pictures(table, source, folder, None, "mask", name, np.array([row]))
            most = max(most, int(torch.where(values == 255, 0, values).max()))
    return [str(number) for number in range(most + 1)]


def _labels(name: str, tables: datasets.DatasetDict, split: str, key: str, source: str) -> tuple[list[str], Column]:
    """Class names, and int64 ``[n]``, or float32 ``[n, K]`` where a row has a list of labels.

    Where the column itself names no classes, they are the distinct values over all splits, sorted.
    """
    feature = tables[split].features[source]
    several = isinstance(feature, datasets.Sequence | datasets.LargeList | list)
    inner = getattr(feature, "feature", feature[0] if isinstance(feature, list) else feature) if several else feature
    values = list(tables[split][source])
    where = f"data: column '{source}' of '{name}'"
    if isinstance(inner, datasets.ClassLabel):
        _none_missing(values, f"{where} has no label", None, -1)  # hidden test labels come as -1
        names, numbers = list(inner.names), {i: i for i in range(len(inner.names))}
    else:
        everywhere = [value for key in tables for value in tables[key][source]]
        _none_missing(everywhere, f"{where} has no label", None)
        every = [value for row in everywhere for value in (row if several else [row])]
        if any(isinstance(value, float | list | dict) for value in every):
            raise UserError(f"{where} is no label: whole numbers or names")
        ordered: list[Any] = sorted(set(every))
        names, numbers = [str(value) for value in ordered], {value: i for i, value in enumerate(ordered)}
    if not several:
        if len(names) == 1 and key != "concept":
            raise UserError(f"data: '{name}': label column '{source}' has one class only; `columns` can leave it out")
        return names, np.array([numbers[value] for value in values], dtype=np.int64)
    table = torch.zeros(len(values), len(names))
    for row, labels in enumerate(values):
        table[row, [numbers[label] for label in labels]] = 1.0
    return names, table


def _none_missing(rows: list[Any], what: str, *none: Any) -> None:
    """``UserError`` that says ``what`` is missing, if one of ``none`` is among the values of some rows."""
    if missing := sum(any(value in none for value in (row if isinstance(row, list) else [row])) for row in rows):
        raise UserError(f"{what} in {missing} of {len(rows)} rows: fill them in, or leave those rows out")


# -------------------------------------------------------------------------------------- pictures


def _pictures(
    table: datasets.Dataset, source: str, folder: Path, size: int | None, key: str, name: str, rows: np.ndarray
) -> torch.Tensor:
    """uint8 ``[B, 3, H, W]`` of pictures, int64 ``[B, H, W]`` of masks. ``UserError`` names a row that is none."""
    try:
        arrays = [_decode(value, folder, size, key) for value in table[rows.tolist()][source]]
    except (OSError, ValueError, SyntaxError) as error:  # the last is Pillow's of a broken PNG
        for row in rows if len(rows) > 1 else ():
            _pictures(table, source, folder, size, key, name, np.array([row]))
        reason = str(error).partition(" <_io.")[0]
        raise UserError(
            f"data: row {rows[0]} of column '{source}' of '{name}' cannot be read as a picture: {reason}"
        ) from error
    if len({array.shape for array in arrays}) > 1:
        raise UserError(f"data: the pictures of '{name}' differ in size: set `image-size` to bring them to one")
    stack = torch.from_numpy(np.stack(arrays))
    return stack.permute(0, 3, 1, 2).contiguous() if key == "image" else stack.long()


def _decode(value: Any, folder: Path, size: int | None, key: str) -> np.ndarray:
    """uint8 ``[H, W, 3]`` (mask: ``[H, W]``, 16 bits kept); with ``size``: the short side brought to it, the middle
    cut out. ``ValueError`` for numbers that are no picture."""
    if value is None:
        raise ValueError("there is none")
    if isinstance(value, str):
        value = Image.open(folder / value)
    elif isinstance(value, dict):
        value = Image.open(io.BytesIO(value["bytes"]) if value.get("bytes") else folder / value["path"])
    elif isinstance(value, list):
        value = _picture(np.asarray(value), "iu" if key == "image" else "iub")
    if key == "image":
        value = _eight_bits(value).convert("RGB")
    elif value.mode not in ("L", "P"):
        value = value.convert("I" if value.mode in SIXTEEN else "L")
    # Pixel labels have no values in between: no interpolation for masks.
    filter_ = Image.Resampling.BILINEAR if key == "image" else Image.Resampling.NEAREST
    return np.array(value if size is None else middle(value, size, filter_))


def _picture(values: np.ndarray, kinds: str) -> Image.Image:
    """The picture that nested lists ``[H, W]`` or ``[H, W, 3 or 4]`` are; ``kinds``: those of numpy they may be of."""
    if values.dtype.kind not in kinds or values.min() < 0 or values.max() > 255:
        raise ValueError("nested lists must be of whole numbers from 0 to 255")
    if values.ndim != 2 and values.shape[2:] not in ((3,), (4,)):
        raise ValueError(f"nested lists must be [height, width] or [height, width, 3], not {list(values.shape)}")
    return Image.fromarray(values.astype(np.uint8))


def _eight_bits(picture: Image.Image) -> Image.Image:
    """A picture whose greys have 16 bits with them brought to 8; Pillow's ``convert`` would cut them off at 255."""
    if picture.mode not in (*SIXTEEN, "F"):
        return picture
    grey = np.asarray(picture)
    if picture.mode == "F" or grey.min() < 0 or grey.max() > 65535:
        raise ValueError(
            f"greys must be whole numbers of 8 or 16 bits, not {grey.dtype} from {grey.min():g} to {grey.max():g}"
        )
    return Image.fromarray(np.round(grey / 257).astype(np.uint8))  # 257 = 65535 / 255
