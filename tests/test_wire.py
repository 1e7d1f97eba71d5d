"""Tensors on the wire: dtype-true round trips, damage that is noticed, and the contract."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapps import wire
from fedapps.methods import METHODS

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool]


def tensors(seed: int, shapes: list[tuple[int, ...]]) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    kinds = (DTYPES * len(shapes))[: len(shapes)]
    return {
        f"layer.{i}": (torch.randn(shape, generator=rng) * 9).to(kind)
        for i, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))
    }


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 99), st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), max_size=12))
def test_round_trip_keeps_names_shapes_dtypes_and_values(seed: int, shapes: list[tuple[int, ...]]) -> None:
    sent = tensors(seed, shapes)
    got = wire.unpack(wire.pack(sent))
    assert list(got) == list(sent)
    for name, tensor in sent.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape
        assert torch.equal(got[name], tensor)


def test_batchnorm_counter_stays_an_integer() -> None:
    sent = torch.nn.BatchNorm1d(3).state_dict()
    got = wire.unpack(wire.pack(sent))
    assert got["num_batches_tracked"].dtype == torch.int64 and got["num_batches_tracked"].shape == ()


def test_tensors_of_one_dtype_travel_as_one_array() -> None:
    record = wire.pack({f"w{i}": torch.zeros(7) for i in range(100)})
    assert len(record) == 2  # the data and the layout
    assert wire.num_bytes([record]) == pytest.approx(100 * 7 * 4, rel=2.0)


def test_what_comes_is_writable_and_its_own() -> None:
    record = wire.pack({"a": torch.ones(2)})
    first = wire.unpack(record)
    first["a"] += 1
    assert torch.equal(wire.unpack(record)["a"], torch.ones(2))


def damaged(layout: bytes, **data: int) -> ArrayRecord:
    """A record with this layout and, by dtype, so many bytes of data."""
    arrays = {dtype: Array(np.ones(size, np.uint8)) for dtype, size in data.items()}
    return ArrayRecord({"layout": Array(np.frombuffer(layout, np.uint8)), **arrays})


@pytest.mark.parametrize(
    "record",
    [
        ArrayRecord({"weights": Array(np.ones(3))}),
        damaged(b"[]", float32=4),
        damaged(b'[["a","float32",[9]]]', float32=4),
        damaged(b'[["a","float32",[-1]]]', float32=4),
        damaged(b'[["a","evil",[1]]]', evil=4),
        damaged(b'[["a","float32",[1]]]', float32=3),
        damaged(b'[["a","float32",[1]]]'),
        damaged(b"{broken"),
    ],
)
def test_damaged_records_are_refused(record: ArrayRecord) -> None:
    with pytest.raises(wire.WireError):
        wire.unpack(record)


def test_non_finite_is_found_by_name() -> None:
    assert wire.non_finite({"a": torch.ones(2), "b": torch.tensor([1.0, float("nan")])}) == "b"
    assert wire.non_finite({"a": torch.tensor([float("inf")])}) == "a"
    assert wire.non_finite({"a": torch.ones(2), "n": torch.tensor(3)}) is None


SIZES = {"P": 5, "d": 2}
UP = METHODS["fedafd"].wire["train"].up


def offer(**records: dict[str, torch.Tensor]) -> None:
    wire.check({name: wire.layout_of(t) for name, t in records.items()}, UP, SIZES, {})


def test_contract_lets_representations_pass() -> None:
    offer(features={"image": torch.zeros(5, 2), "text": torch.zeros(5, 2)})
    offer(features={"text": torch.zeros(5, 2)})


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ({"model": {"head.weight": torch.zeros(2, 2)}}, "record 'model' may not cross"),
        ({"features": {"labels": torch.zeros(5, 2)}}, "may not hold a tensor 'labels'"),
        ({"features": {"image": torch.zeros(5, 3, 32, 32)}}, r"the contract says float32 \[5, 2\]"),
        ({"features": {"image": torch.zeros(5, 2, dtype=torch.int64)}}, "is int64"),
        ({"features": {"image": torch.zeros(4, 2)}}, r"\[4, 2\]"),
    ],
)
def test_contract_refuses_everything_else(records: dict, words: str) -> None:
    with pytest.raises(wire.WireError, match=words):
        offer(**records)


def test_metrics_are_single_numbers() -> None:
    wire.check_metrics(MetricRecord({"loss": 1.0, "num-examples": 3}))
    with pytest.raises(wire.WireError, match="labels"):
        wire.check_metrics(MetricRecord({"labels": [1, 2, 3]}))


def test_records_by_participant() -> None:
    content = RecordDict(wire.prefixed("image-1", {"metrics": MetricRecord({"a": 1})}))
    content["image-10/metrics"] = MetricRecord({"a": 2})
    assert wire.records_of(content, "image-1")["metrics"]["a"] == 1
    assert wire.records_of(content, "text-0") == {}
