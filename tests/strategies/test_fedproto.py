"""FedProto's server half: prototypes by hand, and whole runs."""

import torch

from fedapps import wire
from simulations.in_process import run
from strategies.fedproto import mean_prototypes
from tests.end_to_end.flower import metrics

NONE = {"means": torch.zeros(3, 2), "known": torch.zeros(3)}
A = {"means": torch.tensor([[0.0, 0], [2.0, 0], [1.0, 1]]), "counts": torch.tensor([0.0, 3, 2])}
B = {"means": torch.tensor([[0.0, 0], [6.0, 4], [0.0, 0]]), "counts": torch.tensor([0.0, 1, 0])}
NAMES = {"a-0", "a-1", "b-0", "c-0", "t-0", "t-1", "u-0"}


def test_prototypes_are_weighted_by_counts() -> None:
    found = mean_prototypes(NONE, [A, B])
    assert found["means"].tolist() == [[0, 0], [3, 1], [1, 1]]  # (3·2 + 1·6)/4, (3·0 + 1·4)/4; class 2 of A alone
    assert found["known"].tolist() == [0, 1, 1]


def test_a_class_that_nobody_of_the_round_holds_keeps_its_prototype() -> None:
    old = mean_prototypes(NONE, [A])
    found = mean_prototypes(old, [B])
    assert found["means"].tolist() == [[0, 0], [6, 4], [1, 1]] and found["known"].tolist() == [0, 1, 1]


def test_more_participants_do_not_shrink_a_prototype() -> None:
    found = mean_prototypes(NONE, [A] * 10)
    assert torch.allclose(found["means"], A["means"])


def test_order_does_not_matter_and_stray_rows_do_not_count() -> None:
    sent = [{"means": torch.randn(3, 2), "counts": torch.randint(0, 9, (3,)).float()} for _ in range(7)]
    one, two = mean_prototypes(NONE, sent), mean_prototypes(NONE, sent[::-1])
    assert torch.allclose(one["means"], two["means"], atol=1e-7)
    stray = {"means": torch.full((3, 2), 7.0), "counts": torch.tensor([0.0, -1, 0])}
    found = mean_prototypes(NONE, [A, stray])
    assert torch.equal(found["means"], A["means"]) and found["known"].tolist() == [0, 1, 1]


def test_different_models_modalities_and_label_sets_in_one_run(mixed: dict) -> None:
    got = metrics(run(mixed | {"algo": "fedproto"}))
    for name in NAMES:
        assert got[1, "train", name]["prototype_loss"] == 0 < got[2, "train", name]["prototype_loss"]
        assert 0 <= got[2, "evaluate", name]["prototype_accuracy"] <= 100


def test_only_prototypes_and_counts_leave_and_groups_do_not_mix(mixed: dict) -> None:
    sent, got = set(), {}

    def look(message, reply):  # type: ignore[no-untyped-def]
        for key, value in reply.content.array_records.items():
            sent.update((key.partition("/")[2], *entry) for entry in wire.read_layout(value).items())
        for key, value in message.content.array_records.items():
            got[key.partition("/")[0]] = wire.unpack(value)["means"]
        return reply

    run({**mixed, "algo": "fedproto"}, tamper=look)
    assert {(record, name) for record, name, _ in sent} == {("prototypes", "means"), ("prototypes", "counts")}
    assert torch.equal(got["a-0"], got["b-0"]) and torch.equal(got["t-0"], got["u-0"])
    assert not torch.equal(got["a-0"][:4], got["t-0"][:4]) and got["c-0"].shape != got["a-0"].shape


def test_partial_participation_resumes_alike(mixed: dict) -> None:
    config = {**mixed, "algo": "fedproto", "fraction-train": 0.3}
    whole = run({**config, "num-server-rounds": 4, "run-name": "whole"})
    run({**config, "num-server-rounds": 2})
    got = metrics(run({**config, "num-server-rounds": 4, "resume": True}))
    assert got == metrics(whole)
    assert {name for server_round, phase, name in got if (server_round, phase) == (4, "evaluate")} == NAMES | {"mean"}
    drawn = {name for _, phase, name in got if phase == "train"}
    assert all("prototype_accuracy" in got[4, "evaluate", name] for name in drawn if name in NAMES)


def test_a_class_outlives_a_round_without_it(mixed: dict) -> None:
    """With one participant a round, prototypes of earlier rounds' classes are still there at the end."""
    known = []

    def look(message, reply):  # type: ignore[no-untyped-def]
        if message.metadata.message_type == "evaluate":
            for value in message.content.array_records.values():
                known.append(int(wire.unpack(value)["known"].sum()))
        return reply

    config = {**mixed, "algo": "fedproto", "scenario": "mrl-tiny", "fraction-train": 0.25, "num-server-rounds": 4}
    run(config, tamper=look)
    assert known == sorted(known) and known[0] == 2 < known[-1]
