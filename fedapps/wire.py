"""The wire: tensors to records and back, what a message holds, and the contract of what may cross.

A state dict travels as one flat byte array per dtype plus a layout of names, dtypes and shapes: many small
arrays cost tens of seconds in a deployment, one array a few. A message serves all participants of a node:

- to a node: ``*/config``, ``*/<record>`` (for all of them) and ``<participant>/<record>``;
- back: ``<participant>/<record>``, ``<participant>/metrics``, ``<participant>/evaluate`` or
  ``<participant>/error``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedapps.low_rank import fold
from fedapps.methods import Record

ALL = "*"
CONFIG, METRICS, EVALUATE, ERROR = "config", "metrics", "evaluate", "error"
STATE = STATE_ROUND, STATE_STEP, STATE_KEPT = "state-round", "state-step", "state-kept"  # of the personal state
COUNTS = ("num-examples", *STATE)
MOST = float(np.finfo(np.float32).max)
LAYOUT = "layout"
LOW_RANK = "low-rank "  # such a record may hold a matrix as its three factors

Tensors: TypeAlias = Mapping[str, Tensor]
Layout: TypeAlias = Mapping[str, tuple[str, tuple[int, ...]]]
"""Tensor name -> (dtype, shape)."""


class WireError(Exception):
    """A record that is not what it should be."""


# ------------------------------------------------------------------------------------- tensors <-> records


def layout_of(tensors: Tensors) -> Layout:
    return {name: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in tensors.items()}


def pack(tensors: Tensors) -> ArrayRecord:
    """One ``ArrayRecord`` of any tensors, dtype-true (bfloat16, integers and zero-dimensional ones too)."""
    layout = [[name, dtype, list(shape)] for name, (dtype, shape) in layout_of(tensors).items()]
    flat: dict[str, list[Tensor]] = {}
    for tensor in tensors.values():
        flat.setdefault(str(tensor.dtype).removeprefix("torch."), []).append(tensor.detach().cpu().reshape(-1))
    arrays = {dtype: Array(torch.cat(parts).view(torch.uint8).numpy()) for dtype, parts in flat.items()}
    text = np.frombuffer(json.dumps(layout).encode(), dtype=np.uint8)
    return ArrayRecord({**arrays, LAYOUT: Array(text)})


def read_layout(record: ArrayRecord) -> Layout:
    """The layout of a packed record; raises ``WireError`` if it is not one."""
    try:
        rows = json.loads(record[LAYOUT].numpy().tobytes())
        return {str(name): (str(dtype), tuple(int(n) for n in shape)) for name, dtype, shape in rows}
    except Exception as error:  # whatever a decoder makes of damaged bytes
        raise WireError(f"not a packed record: {error!r}") from error


def unpack(record: ArrayRecord) -> dict[str, Tensor]:
    """The tensors of a packed record; raises ``WireError`` if layout and bytes do not fit."""
    layout = read_layout(record)
    tensors: dict[str, Tensor] = {}
    offsets: dict[str, int] = {}
    flat: dict[str, Tensor] = {}
    for name, (dtype, shape) in layout.items():
        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype) or dtype not in record:
            raise WireError(f"tensor '{name}': no data of dtype '{dtype}'")
        if dtype not in flat:
            data = _bytes(record[dtype])
            if data.dtype != np.uint8 or data.ndim != 1 or data.size % kind.itemsize:
                raise WireError(f"the data of dtype '{dtype}' are not a flat byte array")
            flat[dtype] = torch.from_numpy(data.copy()).view(kind) if data.size else torch.empty(0, dtype=kind)
        start = offsets.get(dtype, 0)
        end = offsets[dtype] = start + math.prod(shape)
        if min(shape, default=0) < 0 or end > flat[dtype].numel():
            raise WireError(f"tensor '{name}' of shape {list(shape)} reaches past the data")
        tensors[name] = flat[dtype][start:end].reshape(shape).clone()
    if any(offsets[dtype] != data.numel() for dtype, data in flat.items()) or set(record) - set(flat) - {LAYOUT}:
        raise WireError("the record holds data that its layout does not name")
    return tensors


def _bytes(array: Array) -> np.ndarray:
    try:
        return array.numpy()
    except Exception as error:
        raise WireError(f"data that cannot be read: {error!r}") from error


def num_bytes(records: Iterable[ArrayRecord | ConfigRecord | MetricRecord]) -> int:
    """Bytes of the tensors in some records, layouts included."""
    return sum(len(a.data) for record in records if isinstance(record, ArrayRecord) for a in record.values())


def non_finite(tensors: Tensors) -> str | None:
    """The name of the first tensor with a NaN or an infinity, if any."""
    return next((name for name, t in tensors.items() if not _finite(t)), None)


def _finite(t: Tensor) -> bool:
    """A sum is quick, and no NaN or infinity hides in it; finite numbers may add up to infinity."""
    return bool(t.sum().isfinite()) or bool(t.isfinite().all())


def content_hash(tensor: Tensor) -> Tensor:
    """SHA-256 over dtype, shape and every bit of a tensor, uint8 ``[32]``."""
    found = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}".encode())
    found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return torch.frombuffer(bytearray(found.digest()), dtype=torch.uint8)


# ------------------------------------------------------------------------------------------- the contract


def check_arrays(
    records: Mapping[str, ArrayRecord],
    allowed: Mapping[str, Record],
    sizes: Mapping[str, int],
    known: Mapping[str, Layout],
    modalities: Iterable[str] | None = None,
) -> None:
    """Raise ``WireError`` unless every record is allowed, with its tensors, shapes and dtypes.

    ``sizes`` gives the symbols of shapes their numbers (``P`` public samples, ``d`` dimensions); ``known``
    gives the layouts of state dicts, e.g. ``"server encoder"``. On the way down a record may be left out or
    hold fewer tensors. On the way up ``modalities`` are those of the participant: every record must be there
    with all its tensors, of tensors that are named after a modality those of its own.
    """
    for record, content in records.items():
        if record not in allowed:
            raise WireError(f"record '{record}' may not cross (allowed: {', '.join(allowed) or 'none'})")
        expected = _expected(allowed[record], sizes, known, modalities)
        layout = read_layout(content)
        if str(allowed[record]).startswith(LOW_RANK):
            layout = fold(layout, expected)
        for name, (dtype, shape) in layout.items():
            if name not in expected:
                raise WireError(f"record '{record}' may not hold a tensor '{name}'")
            if (dtype, shape) != expected[name]:
                want, wanted_shape = expected[name]
                found = f"tensor '{record}/{name}' is {dtype} {list(shape)}"
                raise WireError(f"{found}, the contract says {want} {list(wanted_shape)}")
        missing = [name for name in expected if name not in layout]
        if modalities is not None and missing:
            raise WireError(f"record '{record}' lacks the tensor '{missing[0]}'")
    for record in allowed:
        if modalities is not None and record not in records:
            raise WireError(f"record '{record}' is missing")


def _expected(
    spec: Record, sizes: Mapping[str, int], known: Mapping[str, Layout], modalities: Iterable[str] | None
) -> Layout:
    if isinstance(spec, str):
        return known[spec]
    others = {"image", "text"} - set(modalities if modalities is not None else ("image", "text"))
    return {
        name: ("float32", tuple(sizes[symbol] for symbol in shape.split()))
        for name, shape in spec.items()
        if name not in others
    }


def check_metrics(metrics: Any, allowed: Iterable[str], required: Iterable[str] = ("num-examples",)) -> None:
    """Raise ``WireError`` unless ``metrics`` are single numbers of allowed names, in float32's range, so that sums of
    them are finite too; counts must be such, and seconds not below 0.

    Names are part of the contract, and a list is refused: either could carry labels or samples.
    """
    if not isinstance(metrics, MetricRecord):
        raise WireError("metrics must be a record of numbers")
    for name, value in metrics.items():
        if name not in allowed and name not in required:
            raise WireError(f"metric '{name[:40]}' may not cross")
        if not isinstance(value, int | float):
            raise WireError(f"metric '{name}' is a list; only single numbers may cross")
        if not -MOST <= value <= MOST:
            raise WireError(f"metric '{name}' is {value}")
        if name in COUNTS and not (value >= 0 and value == int(value)):
            raise WireError(f"{name} is {value}, which is no count")
        if name == "seconds" and value < 0:
            raise WireError(f"seconds are {value}")
    for name in required:
        if name not in metrics:
            raise WireError(f"metric '{name}' is missing")


# ------------------------------------------------------------------------------------- participants' records


def prefixed(name: str, records: Mapping[str, Any]) -> dict[str, Any]:
    """Records of one participant under its name."""
    return {f"{name}/{record}": value for record, value in records.items()}


def records_of(content: RecordDict, name: str) -> dict[str, Any]:
    """The records of one participant (or of all, ``*``), without the prefix."""
    start = f"{name}/"
    return {key.removeprefix(start): value for key, value in content.items() if key.startswith(start)}
