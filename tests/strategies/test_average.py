"""Averages by hand, and what FedMRL's server does with them."""

import pytest
import torch

from fedapps import wire
from fedapps.results.folder import read_rows
from simulations.in_process import run
from strategies.average import weighted_mean
from tests.end_to_end.flower import metrics


def test_weighted_mean_by_hand() -> None:
    states = [{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([4.0, 8.0])}]
    mean = weighted_mean(states, [1, 2])
    assert mean is not None and torch.equal(mean["w"], torch.tensor([3.0, 6.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_are_kept(dtype: torch.dtype) -> None:
    mean = weighted_mean([{"w": torch.ones(2, dtype=dtype)}, {"w": torch.zeros(2, dtype=dtype)}], [3, 1])
    assert mean is not None and mean["w"].dtype == dtype and mean["w"][0] == 0.75


def test_integer_buffers_are_counters() -> None:
    norms = [torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)]
    norms[0].train()(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    mean = weighted_mean([norm.state_dict() for norm in norms], [1, 1])
    assert mean is not None
    assert mean["num_batches_tracked"].dtype == torch.int64 and mean["num_batches_tracked"] == 1
    assert torch.allclose(mean["running_mean"], norms[0].running_mean / 2)  # type: ignore[operator]


def test_order_does_not_matter_and_zero_weights_keep_the_old() -> None:
    states = [{"w": torch.randn(100)} for _ in range(5)]
    weights = [0.3, 7, 1e-3, 100, 2]
    one, two = weighted_mean(states, weights), weighted_mean(states[::-1], weights[::-1])
    assert one is not None and two is not None and torch.equal(one["w"], two["w"])
    assert weighted_mean(states, [0] * 5) is None


def test_the_small_model_travels_with_its_head_or_without(tiny: dict) -> None:
    def sent(variant: str) -> int:
        config = {**tiny, "algo": "fedmrl", "scenario": "mrl-tiny", "num-server-rounds": 1, "run-name": variant}
        path = run({**config, "fedmrl.variant": variant})
        (size,) = {row["bytes_up"] for row in read_rows(path / "metrics.jsonl") if row.get("bytes_up")}
        return size  # one and the same small model, whatever the participants' own

    head = 4 * (8 * 9 + 9)
    assert head < sent("mrl") - sent("mrl-e") < head + 400  # and the names and shapes of two tensors


def test_the_servers_model_is_the_mean_of_what_came(tiny: dict) -> None:
    """With one participant a round the next one starts from exactly what that one sent."""
    sent, got = [], []

    def look(message, reply):  # type: ignore[no-untyped-def]
        for key, value in message.content.items():
            if key.endswith("/shared") and message.metadata.message_type == "train":
                got.append(wire.unpack(value))
        for key, value in reply.content.items():
            if key.endswith("/shared"):
                sent.append(wire.unpack(value))
        return reply

    run({**tiny, "algo": "fedmrl", "scenario": "mrl-tiny", "fraction-train": 0.2}, tamper=look)
    assert len(sent) == len(got) == 2
    assert all(torch.equal(got[1][name], tensor) for name, tensor in sent[0].items())
    assert any(not torch.equal(got[0][name], tensor) for name, tensor in sent[0].items())


def test_partial_participation_resumes_alike(tiny: dict) -> None:
    config = {**tiny, "algo": "fedmrl", "scenario": "mrl-tiny", "fraction-train": 0.5}
    whole = run({**config, "num-server-rounds": 3, "run-name": "whole"})
    run({**config, "num-server-rounds": 2})
    assert metrics(run({**config, "num-server-rounds": 3, "resume": True})) == metrics(whole)
