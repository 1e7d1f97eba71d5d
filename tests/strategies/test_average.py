"""Averages by hand, and what FedMRL's server does with them."""

import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fedapps import wire
from fedapps.errors import UserError
from fedapps.results.folder import read_rows
from fedapps.scenario import load_scenario
from simulations.in_process import run
from strategies.average import RunningMean, Tensors
from tests.end_to_end.flower import metrics


def weighted_mean(states: Sequence[Tensors], weights: Sequence[float]) -> Tensors | None:
    mean = RunningMean()
    for state, weight in zip(states, weights, strict=True):
        mean.add(state, weight)
    return mean.result()


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


UNEQUAL = """
dim: 24
settings: {num-server-rounds: 2, fedmrl.d1: 8}
participants:
  - &a
    name: a
    modality: image
    task: classification
    model: {name: cnn, width: 4}
    unit: false
    data: {name: emoji, label: group, size: 40, test-size: 60}
    train: {optimizer: sgd, learning-rate: 0.02, batch-size: 16}
  - {<<: *a, name: b, data: {name: emoji, label: group, size: 10, test-size: 60}}
  - {<<: *a, name: c, data: {name: emoji, label: vendor, size: 30, test-size: 60}}
shared: {image: {name: cnn, width: 4}}
"""


@pytest.mark.parametrize(
    ("algo", "record"),
    [("fedavg", "model"), ("lg-fedavg", "head"), ("fml", "shared"), ("fedapen", "shared"), ("fedmrl", "shared")],
)
def test_every_method_weighs_by_samples_within_the_same_classes(
    algo: str, record: str, tiny: dict, tmp_path: Path
) -> None:
    """a has 40 samples, b 10 of the same classes, c 30 of others: θ of the second round by hand."""
    sent, got = follow(algo, record, record, tiny, tmp_path)
    for name, tensor in got["a-0"].items():
        if tensor.is_floating_point():
            wanted = (40 * sent["a-0"][name].double() + 10 * sent["b-0"][name].double()) / 50
            torch.testing.assert_close(tensor.double(), wanted, atol=1e-6, rtol=1e-6)
        assert torch.equal(tensor, got["b-0"][name])
    assert all(torch.equal(tensor, sent["c-0"][name]) for name, tensor in got["c-0"].items()), "alone with its classes"


def test_fedkd_weighs_updates_by_samples(tiny: dict, tmp_path: Path) -> None:
    tiny |= {"fedkd.t-start": 1.0, "fedkd.t-end": 1.0}  # updates come whole
    sent, got = follow("fedkd", "update", "shared", tiny, tmp_path)
    _, first = follow("fedkd", "update", "shared", {**tiny, "num-server-rounds": 1, "run-name": "first"}, tmp_path, "1")
    for name, tensor in got["a-0"].items():
        if tensor.is_floating_point():
            mean = (40 * sent["a-0"][name].double() + 10 * sent["b-0"][name].double()) / 50
            torch.testing.assert_close(tensor.double(), first["a-0"][name].double() + mean, atol=1e-6, rtol=1e-6)


def follow(  # type: ignore[no-untyped-def]
    algo: str, up: str, down: str, tiny: dict, folder: Path, of_round: str = "2"
):
    """What participants sent in the first round, and what came to them for training in ``of_round``."""
    scenario = folder / "unequal.yaml"
    scenario.write_text(UNEQUAL)
    sent, got = {}, {}

    def look(message, reply):  # type: ignore[no-untyped-def]
        if message.metadata.message_type == "train":
            for content, found, group, record in (
                (reply.content, sent, "1", up),
                (message.content, got, of_round, down),
            ):
                for name in ("a-0", "b-0", "c-0"):
                    if message.metadata.group_id == group and f"{name}/{record}" in content:
                        found[name] = wire.unpack(content[f"{name}/{record}"])
        return reply

    settings = {"fedmrl.d1": 8} if algo == "fedmrl" else {}
    run({**tiny, "algo": algo, "scenario": str(scenario), **settings}, tamper=look)
    return sent, got


def test_a_participant_cannot_weigh_more_than_its_samples(tiny: dict) -> None:
    def boast(message, reply):  # type: ignore[no-untyped-def]
        if message.metadata.message_type == "train" and "a-0/metrics" in reply.content:
            reply.content["a-0/metrics"]["num-examples"] = 10**15
        return reply

    path = run({**tiny, "algo": "fedmrl", "scenario": "mrl-tiny"}, tamper=boast)
    errors = [row for row in read_rows(path / "metrics.jsonl") if "error" in row]
    assert {row["participant"] for row in errors} == {"a-0"} and "it has 40" in errors[0]["error"]


@pytest.mark.parametrize("algo", ["fedmrl", "fml", "fedapen", "fedkd", "lg-fedavg", "fedavg", "fedproto"])
def test_all_are_tested_with_what_the_round_has_averaged(algo: str, tiny: dict) -> None:
    """Those that trained and those that did not: one row of results means one thing."""
    asked: list[set[str]] = []

    def look(message, reply):  # type: ignore[no-untyped-def]
        if message.metadata.message_type == "evaluate":
            asked.append({key.partition("/")[0] for key in message.content} - {wire.ALL})
        else:
            assert not any(key.endswith("/evaluate") for key in reply.content)
        return reply

    scenario = "mrl-same-tiny" if algo == "fedavg" else "mrl-tiny"
    path = run({**tiny, "algo": algo, "scenario": scenario, "fraction-train": 0.5, "run-name": algo}, 1, tamper=look)
    rounds = {r for r, phase, _ in metrics(path) if phase == "evaluate"}
    everyone = set(load_scenario(scenario).by_name)
    assert len(asked) == len(rounds) and all(names == everyone for names in asked)


def test_fedkd_cannot_be_continued_for_more_rounds(tiny: dict) -> None:
    run({**tiny, "algo": "fedkd", "scenario": "mrl-tiny"})
    with pytest.raises(UserError, match="num-server-rounds was 2 in that run and is 3 now"):
        run({**tiny, "algo": "fedkd", "scenario": "mrl-tiny", "num-server-rounds": 3, "resume": True})


@pytest.mark.parametrize(
    ("algo", "scenario"),
    [("fedavg", "mrl-same-tiny"), ("fedprox", "mrl-same-tiny"), ("fediot", "cola-tiny"), ("fedcola", "cola-tiny")]
    + [(algo, "mrl-tiny") for algo in ("fedmrl", "lg-fedavg", "fml", "fedkd", "fedapen")],
)
def test_models_are_let_go_as_soon_as_they_are_added(
    algo: str, scenario: str, tiny: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, the server has the one that it is at."""
    plain, seen, alive = RunningMean.add, list[weakref.ref[torch.Tensor]](), list[int]()

    def add(self: RunningMean, state: Tensors, weight: float) -> None:
        plain(self, state, weight)
        seen.extend(weakref.ref(tensor) for tensor in state.values())
        alive.append(sum(ref() is not None for ref in seen) - len(state))

    monkeypatch.setattr(RunningMean, "add", add)
    run({**tiny, "algo": algo, "scenario": scenario, "num-server-rounds": 2})
    assert len(alive) > 4 and not any(alive)
