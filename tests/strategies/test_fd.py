"""FD's server half: means of the others by hand, and whole runs."""

import json

import pytest
import torch

from fedapps import wire
from fedapps.errors import RunFailed
from simulations.in_process import run
from strategies.fd import means_of_others
from tests.end_to_end.flower import metrics

A = {"means": torch.tensor([[0.0, 0, 0], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]]), "counts": torch.tensor([0.0, 5, 1])}
B = {"means": torch.tensor([[0.0, 0, 0], [0.0, 0.6, 0.4], [0.0, 0.0, 0.0]]), "counts": torch.tensor([0.0, 1, 0])}
C = {"means": torch.tensor([[0.0, 0, 0], [0.4, 0.4, 0.2], [0.5, 0.0, 0.5]]), "counts": torch.tensor([0.0, 9, 2])}


def test_the_own_contribution_is_removed() -> None:
    found = means_of_others({"a": A, "b": B, "c": C}, ["a", "b", "c", "new"])
    want = {
        "a": [[0, 0, 0], [0.2, 0.5, 0.3], [0.5, 0, 0.5]],  # label 1 of b and c, not weighted by counts; label 2 of c
        "b": [[0, 0, 0], [0.3, 0.6, 0.1], [0.25, 0, 0.75]],  # b does not hold label 2: the mean of both that do
        "c": [[0, 0, 0], [0.1, 0.7, 0.2], [0, 0, 1]],
        "new": [[0, 0, 0], [0.2, 0.6, 0.2], [0.25, 0, 0.75]],  # it has sent nothing: all
    }
    for name, rows in want.items():
        assert torch.allclose(found[name], torch.tensor(rows, dtype=torch.float32), atol=1e-6), name


def test_a_label_of_one_alone_gives_it_no_target() -> None:
    found = means_of_others({"a": A, "b": B}, ["a", "b"])
    assert found["a"][2].tolist() == [0, 0, 0] and found["b"][2].tolist() == [0, 0, 1]
    assert not means_of_others({"a": A}, ["a"])["a"].any()


def test_rows_without_samples_do_not_count() -> None:
    stray = {"means": torch.full((3, 3), 7.0), "counts": torch.tensor([0.0, 0, 0])}
    assert torch.equal(means_of_others({"a": A, "b": stray}, ["b"])["b"], A["means"])


def test_targets_are_probabilities_whatever_is_rounded() -> None:
    rows = torch.randn(50, 4, 4).mul(9).softmax(dim=2)
    sent = {str(i): {"means": means, "counts": torch.ones(4)} for i, means in enumerate(rows)}
    found = torch.stack(list(means_of_others(sent, list(sent)).values()))
    assert (found >= 0).all() and torch.allclose(found.sum(dim=2), torch.ones(50, 4))


def test_different_models_modalities_and_label_sets_in_one_run(mixed: dict) -> None:
    down: list[tuple[int, str, torch.Tensor]] = []

    def look(message, reply):  # type: ignore[no-untyped-def]
        config = next((v for key, v in message.content.items() if key == "*/config"), {})
        for key, value in message.content.items():
            if key.endswith("/targets"):
                down.append((config["server-round"], key.partition("/")[0], wire.unpack(value)["means"]))
        return reply

    got = metrics(run(mixed | {"algo": "fd"}, tamper=look))
    assert {name for _, name, _ in down} == {"a-0", "a-1", "b-0", "c-0", "t-0", "t-1", "u-0"}
    assert {server_round for server_round, _, _ in down} == {2}  # nothing is known before
    losses = {name: got[2, "train", name]["distillation_loss"] for _, name, _ in down}
    assert losses["c-0"] == 0 and losses["t-0"] > 0 and losses["u-0"] > 0
    for _, _, target in down:
        sums = target.sum(dim=1)
        assert torch.allclose(sums[sums > 0], torch.ones(()))
    assert all(got[1, "train", name]["distillation_loss"] == 0 for name in losses)


def test_only_means_and_counts_leave(mixed: dict) -> None:
    sent = set()

    def look(message, reply):  # type: ignore[no-untyped-def]
        for key, value in reply.content.array_records.items():
            sent.update((key.partition("/")[2], *entry) for entry in wire.read_layout(value).items())
        return reply

    run({**mixed, "algo": "fd", "scenario": "mrl-tiny", "num-server-rounds": 1}, tamper=look)
    assert sent == {("outputs", "means", ("float32", (9, 9))), ("outputs", "counts", ("float32", (9,)))}


def test_partial_participation_resumes_alike(mixed: dict) -> None:
    config = {**mixed, "algo": "fd", "fraction-train": 0.5}
    whole = run({**config, "num-server-rounds": 4, "run-name": "whole"})
    run({**config, "num-server-rounds": 2})
    got = metrics(run({**config, "num-server-rounds": 4, "resume": True}))
    assert got == metrics(whole)
    tested = {name for server_round, phase, name in got if (server_round, phase) == (4, "evaluate")}
    assert tested == {"a-0", "a-1", "b-0", "c-0", "t-0", "t-1", "u-0", "mean"}
    trained = [got[key]["distillation_loss"] for key in got if key[0] > 2 and key[1] == "train" and key[2] != "mean"]
    assert any(loss > 0 for loss in trained)


def test_a_participant_counts_with_what_it_sent_last(mixed: dict) -> None:
    """Also in rounds that it is not drawn for: here one is drawn a round."""
    sent: dict[str, dict[str, torch.Tensor]] = {}
    checked = []

    def look(message, reply):  # type: ignore[no-untyped-def]
        for key, value in message.content.array_records.items():
            name = key.partition("/")[0]
            assert torch.equal(wire.unpack(value)["means"], means_of_others(sent, [name])[name])
            checked.append(name)
        for key, value in reply.content.array_records.items():
            sent[key.partition("/")[0]] = wire.unpack(value)
        return reply

    config = {**mixed, "algo": "fd", "scenario": "mrl-tiny", "fraction-train": 0.25, "num-server-rounds": 5}
    run(config, tamper=look)
    assert len(checked) == 4 and len(sent) >= 3


def test_a_reply_that_is_not_finite_is_left_out(mixed: dict) -> None:
    def spoil(message, reply):  # type: ignore[no-untyped-def]
        for key in list(reply.content):
            if key == "a-0/outputs":
                tensors = wire.unpack(reply.content[key])
                reply.content[key] = wire.pack({**tensors, "means": tensors["means"] * float("nan")})
        return reply

    path = run({**mixed, "algo": "fd", "scenario": "mrl-tiny"}, tamper=spoil)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert {row["participant"] for row in rows if "error" in row} == {"a-0"}
    strict = {"min-participants": 4, "max-failed-rounds": 1}
    with pytest.raises(RunFailed, match="min-participants is 4"):
        run({**mixed, "algo": "fd", "scenario": "mrl-tiny", "run-name": "q", **strict}, tamper=spoil)
