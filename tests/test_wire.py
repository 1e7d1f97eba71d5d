"""Tensors on the wire: dtype-true round trips, damage that is noticed, and the contract."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
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


def test_a_hash_tells_every_bit_apart() -> None:
    zeros = torch.zeros(2, 3)
    others = [zeros.view(3, 2), zeros.bfloat16(), -zeros, zeros + 1e-45, zeros.int()]
    assert len({bytes(wire.content_hash(tensor).numpy()) for tensor in [zeros, *others]}) == 6
    assert torch.equal(wire.content_hash(torch.zeros(3, 2).T), wire.content_hash(zeros))


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


LAYOUT = b'[["a","float32",[1]]]'
UNREADABLE = Array(dtype="uint8", shape=(4,), stype="numpy.ndarray", data=b"PK\x03\x04 no archive")


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
        damaged(b'[["a","float32",[Infinity]]]', float32=4),
        damaged(b"[" * 100_000),
        ArrayRecord({"layout": Array(dtype="uint8", shape=(1,), stype="numpy.ndarray", data=b"")}),
        ArrayRecord({"layout": Array(np.frombuffer(LAYOUT, np.uint8)), "float32": UNREADABLE}),
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
Z = torch.zeros(5, 2)


def offer(*modalities: str, **records: dict[str, torch.Tensor]) -> None:
    wire.check_arrays({name: wire.pack(t) for name, t in records.items()}, UP, SIZES, {}, modalities)


def test_contract_lets_representations_pass() -> None:
    offer("image", "text", features={"image": Z, "text": Z})
    offer("text", features={"text": Z})


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ({"features": {"image": Z}, "model": {"head.weight": Z}}, "record 'model' may not cross"),
        ({"features": {"image": Z, "labels": Z}}, "may not hold a tensor 'labels'"),
        ({"features": {"image": Z, "text": Z}}, "may not hold a tensor 'text'"),
        ({"features": {"text": Z}}, "may not hold a tensor 'text'"),
        ({"features": {"image": torch.zeros(5, 3, 32, 32)}}, r"the contract says float32 \[5, 2\]"),
        ({"features": {"image": torch.zeros(5, 2, dtype=torch.int64)}}, "is int64"),
        ({"features": {"image": torch.zeros(4, 2)}}, r"\[4, 2\]"),
        ({"features": {}}, "lacks the tensor 'image'"),
        ({}, "record 'features' is missing"),
    ],
)
def test_contract_refuses_everything_else(records: dict, words: str) -> None:
    with pytest.raises(wire.WireError, match=words):
        offer("image", **records)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (MetricRecord({"num-examples": 3, "labels": [1, 2, 3]}), "'labels' may not cross"),
        (MetricRecord({"num-examples": 3, "loss": [1, 2, 3]}), "'loss' is a list"),
        (MetricRecord({"num-examples": 3, "label of sample 0 is 17": 1}), "may not cross"),
        (MetricRecord({"num-examples": 3, "loss": float("nan")}), "'loss' is nan"),
        (MetricRecord({"num-examples": float("inf")}), "'num-examples' is inf"),
        (MetricRecord({"loss": 1.0}), "'num-examples' is missing"),
        (ConfigRecord({"num-examples": 3}), "record of numbers"),
        (None, "record of numbers"),
    ],
)
def test_metrics_are_finite_numbers_of_known_names(metrics: object, words: str) -> None:
    wire.check_metrics(MetricRecord({"loss": 1.0, "num-examples": 3}), ["loss"])
    with pytest.raises(wire.WireError, match=words):
        wire.check_metrics(metrics, ["loss"])


def test_records_by_participant() -> None:
    content = RecordDict(wire.prefixed("image-1", {"metrics": MetricRecord({"a": 1})}))
    content["image-10/metrics"] = MetricRecord({"a": 2})
    assert wire.records_of(content, "image-1")["metrics"]["a"] == 1
    assert wire.records_of(content, "text-0") == {}
