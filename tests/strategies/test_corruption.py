"""Replies damaged in every way: the server ends as if those participants had been silent.

What the participants of one run have sent is replayed, so that only the server works.
"""

from __future__ import annotations

import math
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedapps import wire
from tests.faults import VARIANTS, config_of
from tests.replay import Change, Outcome, Recorded, Records, When, record, replay

Random = random.Random
SLOW = {"local", "fedafd", "fedprox", "fediot", "fedcola"}  # models of more than a few thousand numbers

# ------------------------------------------------------------------------- ways to damage a reply's arrays


def _some(rng: Random, records: Records) -> tuple[str, dict[str, Tensor], str]:
    """An array record, its tensors, and one of these that has numbers."""
    record = rng.choice([key for key, value in records.items() if isinstance(value, ArrayRecord)])
    tensors = wire.unpack(records[record])
    return record, tensors, rng.choice([name for name, tensor in tensors.items() if tensor.numel()])


def not_finite(rng: Random, records: Records) -> Records:
    record, tensors, _ = _some(rng, records)
    name = rng.choice([name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel()])
    tensors[name].view(-1)[rng.randrange(tensors[name].numel())] = rng.choice([math.nan, math.inf, -math.inf])
    return {**records, record: wire.pack(tensors)}


def of_another_dtype(rng: Random, records: Records) -> Records:
    record, tensors, name = _some(rng, records)
    dtypes = {torch.float64, torch.float16, torch.int32, torch.bool} - {tensors[name].dtype}
    return {**records, record: wire.pack({**tensors, name: tensors[name].to(rng.choice(sorted(dtypes, key=str)))})}


def of_another_shape(rng: Random, records: Records) -> Records:
    record, tensors, name = _some(rng, records)
    old = tensors[name]
    new = rng.choice([old.unsqueeze(0), torch.cat([old.reshape(-1), old.reshape(-1)]), old.reshape(-1)[:-1]])
    return {**records, record: wire.pack({**tensors, name: new})}


def renamed(rng: Random, records: Records) -> Records:
    record, tensors, name = _some(rng, records)
    return {**records, record: wire.pack({f"{key}x" if key == name else key: t for key, t in tensors.items()})}


def lacking_a_tensor(rng: Random, records: Records) -> Records:
    record, tensors, name = _some(rng, records)
    return {**records, record: wire.pack({key: t for key, t in tensors.items() if key != name})}


def with_another_tensor(rng: Random, records: Records) -> Records:
    record, tensors, name = _some(rng, records)
    return {**records, record: wire.pack({**tensors, "samples": tensors[name]})}


def cut_short(rng: Random, records: Records) -> Records:
    """Bytes of an array that are no array any more, or fewer numbers than the layout names."""
    record, _, _ = _some(rng, records)
    arrays = dict(records[record])
    key = rng.choice(list(arrays))
    data, whole = arrays[key].data, arrays[key].numpy()
    less = Array(arrays[key].dtype, arrays[key].shape, arrays[key].stype, data[: rng.randrange(len(data))])
    arrays[key] = rng.choice([less, Array(whole[: rng.randrange(len(whole))].copy())])
    return {**records, record: ArrayRecord(arrays)}


def without_a_layout(rng: Random, records: Records) -> Records:
    record, tensors, name = _some(rng, records)
    size = tensors[name].numel()
    texts = [
        b"",
        b"\xff\xfe",
        b"{",
        b"null",
        b"[[]]",
        b"[" * 10**5,
        b'[["w", "float32", [1e999]]]',
        b'[["w", "float32", [-1]]]',
        b'[["w", "Tensor", [1]]]',
        b'[["w", "float32", [99999999999999999999999]]]',
        b'[["%s", "float32", [%d, true, "1"]]]' % (name.encode(), size),
    ]
    layout = Array(np.frombuffer(rng.choice(texts), dtype=np.uint8))
    return {**records, record: ArrayRecord({**records[record], wire.LAYOUT: layout})}


ARRAYS = [
    not_finite,
    of_another_dtype,
    of_another_shape,
    renamed,
    lacking_a_tensor,
    with_another_tensor,
    cut_short,
    without_a_layout,
]

# -------------------------------------------------------------------- ways to damage whatever else is in one


def lacking_a_record(rng: Random, records: Records) -> Records:
    gone = rng.choice([key for key in records if key != wire.EVALUATE])  # a round need not be tested
    return {key: value for key, value in records.items() if key != gone}


def with_another_record(rng: Random, records: Records) -> Records:
    samples = wire.pack({"x": torch.zeros(2)})
    return {**records, "samples": rng.choice([samples, ConfigRecord({"x": "y"}), MetricRecord({"x": 1})])}


def miscounting(rng: Random, records: Records) -> Records:
    count: Any = rng.choice([-1, math.nan, math.inf, 10**15, 1e300, [3, 4], None])
    metrics = {key: value for key, value in records[wire.METRICS].items() if key != "num-examples"}
    return {**records, wire.METRICS: MetricRecord(metrics if count is None else {**metrics, "num-examples": count})}


def with_odd_metrics(rng: Random, records: Records) -> Records:
    key = rng.choice([key for key in (wire.METRICS, wire.EVALUATE) if key in records])
    odd: Any = rng.choice([{"label": 3}, {"seconds": [1.0, 2.0]}, {"seconds": math.nan}, {"": 0}])
    return {**records, key: MetricRecord({**records[key], **odd})}


def with_metrics_of_another_type(rng: Random, records: Records) -> Records:
    return {**records, wire.METRICS: rng.choice([ConfigRecord({"num-examples": 1}), wire.pack({"w": torch.ones(1)})])}


def under_a_name_that_is_nobodys(rng: Random, records: Records) -> Records:
    return {f"nobody/{key}": value for key, value in records.items()}


def an_error(rng: Random, records: Records) -> Records:
    return {wire.ERROR: ConfigRecord(rng.choice([{"error": "no power"}, {"error": 7}, {}]))}


def a_failed_node(rng: Random, records: Records) -> None:
    """Of all participants that it hosts."""
    return None


OTHERS = [
    lacking_a_record,
    with_another_record,
    miscounting,
    with_odd_metrics,
    with_metrics_of_another_type,
    under_a_name_that_is_nobodys,
    an_error,
    a_failed_node,
]


# --------------------------------------------------------------------------------------------- the property


@pytest.mark.parametrize("variant", VARIANTS)
def test_damaged_replies_are_as_none(variant: str, tmp_path: Path) -> None:
    """State, what others are sent, and all rows of others are bit for bit those of silence; whatever the order."""
    recorded = record(config_of(variant, tmp_path, **{"num-server-rounds": 2}))
    silences: dict[frozenset[tuple[When, str]], Outcome] = {}

    @settings(
        max_examples=6 if variant.split()[0] in SLOW else 25,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=[Phase.generate],
    )
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        changes = data.draw(damages(recorded))
        bad = frozenset((when, name) for when, of in changes.items() for name in of)
        got = replay(recorded, changes, data.draw(st.integers(0, 99)))
        if bad not in silences:
            silences[bad] = replay(recorded, {when: dict.fromkeys(of, silent) for when, of in changes.items()})
        want = silences[bad]
        assert got.state == want.state and got.sent == want.sent
        assert got.errors.keys() == want.errors.keys() >= {(when[0], name) for when, name in bad}
        assert [row for row in got.rows if "error" not in row] == [row for row in want.rows if "error" not in row]

    holds()


def silent(records: Records) -> Records:
    return {}


@st.composite
def damages(draw: st.DrawFn, recorded: Recorded) -> dict[When, dict[str, Change]]:
    """Some participants' replies in one of the training phases, each damaged in a way of its own."""
    phases = sorted({(r, phase) for r, phase, _, _ in recorded.replies if phase != "evaluate"})
    when = draw(st.sampled_from(phases))
    sent = recorded.has(when)
    seed = draw(st.integers(0, 10**6))
    found: dict[str, Change] = {}
    for name in draw(st.lists(st.sampled_from(sorted(sent)), min_size=1, unique=True)):
        arrays = any(isinstance(value, ArrayRecord) for value in sent[name].values())
        kind = draw(st.sampled_from([*OTHERS, *(ARRAYS if arrays else [])]))
        mates = recorded.mates(recorded.names.index(name)) if kind is a_failed_node else [name]
        found |= {mate: partial(kind, Random(f"{seed} {mate}")) for mate in mates if mate in sent}
    return {when: found}
