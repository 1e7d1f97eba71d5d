"""Who gets which rows: the partitioners of ``flwr-datasets`` behind one function."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
from flwr_datasets import partitioner as flower

from fedapps.data.samples import Samples
from fedapps.errors import UserError
from fedapps.hints import nearest

KINDS = ("iid", "dirichlet", "pathological", "natural", "shards", "whole")
HELP = {
    "iid": "take fewer participants or a smaller `size`",
    "dirichlet": "take a larger `alpha`, fewer participants, or a smaller `size` or `min-size`",
    "pathological": "take fewer participants, another number of `classes`, or a smaller `size`",
    "natural": "take fewer participants, other `ids`, or a smaller `size`",
    "shards": "take fewer participants, fewer `shards`, or a smaller `size`",
    "whole": "take a smaller `size`",
}


def partition(
    samples: Samples,
    rows: np.ndarray,
    num: int,
    seed: int,
    kind: str,
    by: str | None = None,
    *,
    alpha: float = 1.0,
    classes: int = 2,
    shards: int = 2,
    ids: list[str] | None = None,
    size: int | None = None,
    min_size: int = 2,
) -> list[np.ndarray]:
    """Deal ``rows`` (row numbers of ``samples``) out to ``num`` participants.

    kind: ``iid``; ``dirichlet`` (the share of each class of ``by`` from Dir(``alpha``), arXiv:1905.12022);
        ``pathological`` (``classes`` classes of ``by`` each; a class that nobody draws is left out);
        ``natural`` (one value of ``by`` each: ``ids``, else those with most rows); ``shards`` (``shards``
        shards each: of the rows sorted by ``by``, arXiv:1602.05629, or without ``by`` of the rows as they lie in
        the data set); ``whole`` (all rows; for one participant).
    by: a label column; ``iid``, ``whole`` and ``shards`` need none.
    size: rows that each participant keeps, drawn at random from its partition; default: all.

    Returns ``num`` disjoint int64 arrays of row numbers, shuffled, the same for the same seed. Raises
    ``UserError`` for a partition with fewer than ``min_size`` (or ``size``) rows, naming what caused it.
    """
    rows = np.asarray(rows, dtype=np.int64)
    least = max(min_size, size or 0, 1)
    values = _values(samples, rows, kind, by)
    given: dict[str, dict[str, Any]] = {
        "dirichlet": {"alpha": alpha},
        "pathological": {"classes": classes},
        "shards": {"shards": shards},
    }
    settings = {"kind": kind, "num": num, **given.get(kind, {}), **({"by": by} if by else {}), "rows": len(rows)}
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows))  # the partitioners cut in the order of the rows
    draw = int(rng.integers(2**31))
    if kind == "shards" and values is None:
        order = np.argsort(rows)

    def cut(smallest: int) -> list[np.ndarray]:
        labels = None if values is None else values[order]
        return [order[part] for part in _cut(kind, labels, len(rows), num, draw, alpha, classes, shards, smallest)]

    if num < 1 or (kind == "whole" and num != 1):
        raise UserError(f"partition: {_text(settings)}: num must be {'1' if kind == 'whole' else 'at least 1'}")
    if num > len(rows):
        raise UserError(f"partition: {_text(settings)}: there are fewer rows than participants")
    if kind == "shards" and not 1 <= shards <= len(rows) // num:
        raise UserError(f"partition: {_text(settings)}: shards must be at least 1, and each shard must have a row")
    if kind == "pathological" and values is not None and classes > len(set(values.tolist())):
        raise UserError(f"partition: {_text(settings)}: `{by}` has only {len(set(values.tolist()))} classes there")
    if kind == "natural":
        assert values is not None
        parts = _natural(samples, values, num, str(by), ids, order)
    else:
        try:
            parts = cut(least)
        except ValueError as error:
            if kind != "dirichlet":
                reason = " ".join(str(error).split()).split(". ")[0]
                raise UserError(f"partition: {_text(settings)}: {HELP[kind]} ({reason})") from error
            parts = cut(0)  # ten draws had a partition that is too small: name that of the first draw
    for number, part in enumerate(parts):
        if len(part) < least:
            need = f"size {size}" if size and size >= min_size else f"min-size {min_size}"
            raise UserError(
                f"partition {number} has {len(part)} rows, fewer than {need} ({_text(settings)}): {HELP[kind]}"
            )
    return [rows[rng.permutation(part)[:size]] for part in parts]


def _text(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items())


def _values(samples: Samples, rows: np.ndarray, kind: str, by: str | None) -> np.ndarray | None:
    """The values of ``by`` in ``rows``; None for the kinds that need none."""
    if kind not in KINDS:
        raise UserError(f"partition: unknown kind '{kind}'{nearest(kind, KINDS)}")
    if kind in ("iid", "whole") or (kind == "shards" and by is None):
        return None
    if by is None:
        raise UserError(f"partition: kind {kind} needs `by`, a label column{_such_as(samples)}")
    column = samples[by]
    if isinstance(column, list) and column and isinstance(column[0], str):
        column = np.array(column)
    if not isinstance(column, np.ndarray) or column.ndim != 1:
        raise UserError(f"partition: `by: {by}` is no label with one value a row{_such_as(samples)}")
    return column[rows]


def _such_as(samples: Samples) -> str:
    names = [name for name in samples.classes if ":" not in name and isinstance(samples[name], np.ndarray)]
    return f" such as {', '.join(names)}" if names else "; the data have none: name one in `columns`"


def _cut(
    kind: str,
    values: np.ndarray | None,
    count: int,
    num: int,
    seed: int,
    alpha: float,
    classes: int,
    shards: int,
    least: int,
) -> list[np.ndarray]:
    """Positions ``0…count-1`` dealt out. Raises ``ValueError`` where the partitioner cannot."""
    if kind == "whole":
        return [np.arange(count)]
    if kind == "shards" and values is None:  # the partitioner would sort, and drop the last rows
        pieces = np.array_split(np.arange(count), num * shards)
        dealt = np.random.default_rng(seed).permutation(num * shards).reshape(num, shards)
        return [np.concatenate([pieces[piece] for piece in own]) for own in dealt]
    makers: dict[str, Callable[[], flower.Partitioner]] = {
        "iid": lambda: flower.IidPartitioner(num),
        "dirichlet": lambda: flower.DirichletPartitioner(num, "by", float(alpha), least, seed=seed),
        "pathological": lambda: flower.PathologicalPartitioner(
            num, "by", classes, "first-deterministic", shuffle=False, seed=seed
        ),
        "shards": lambda: flower.ShardPartitioner(num, "by", num_shards_per_partition=shards, seed=seed),
    }
    table = {"row": np.arange(count)} | ({} if values is None else {"by": values})
    return _load(makers[kind](), table, num)


def _natural(
    samples: Samples, values: np.ndarray, num: int, by: str, ids: list[str] | None, order: np.ndarray
) -> list[np.ndarray]:
    """The rows of ``num`` values of ``by``: of ``ids`` in their order, else of the commonest."""
    names = samples.classes.get(by)
    counts = Counter(values.tolist())
    shown = {str(names[value] if names else value): value for value in counts}
    if ids is not None:
        for name in ids:
            if name not in shown:
                raise UserError(f"partition: `{by}` has no value '{name}' in these rows{nearest(name, shown)}")
        if len(set(ids)) < len(ids):
            raise UserError("partition: `ids` names a value twice")
    else:
        ids = sorted(shown, key=lambda name: (-counts[shown[name]], name))
    if num > len(ids):
        few = ", ".join(ids[:9])
        raise UserError(f"partition: kind natural, by {by}: {num} participants but {len(ids)} values: {few}")
    chosen = [shown[name] for name in ids[:num]]
    partitioner = flower.NaturalIdPartitioner("by")
    parts = _load(partitioner, {"row": order, "by": values[order]}, len(counts))
    numbers = {value: number for number, value in partitioner.partition_id_to_natural_id.items()}
    return [parts[numbers[value]] for value in chosen]


def _load(partitioner: flower.Partitioner, table: dict[str, np.ndarray], num: int) -> list[np.ndarray]:
    """The ``row`` column of each partition, without the partitioner's warnings and progress bars."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        partitioner.dataset = datasets.Dataset.from_dict(table).with_format("arrow")  # numpy reads row by row
        return [np.asarray(partitioner.load_partition(number)["row"], dtype=np.int64) for number in range(num)]
