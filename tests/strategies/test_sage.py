"""SAGE's server half: the global teacher of each participant."""

from pathlib import Path

import torch
from torch import Tensor

from fedapps import wire
from simulations.in_process import run
from strategies.sage import mean_of_others
from tests.alike import GROUP, TAGS, P, alike

SENT = {
    "a": torch.tensor([[1.0, 0.0], [0.5, 0.5]]),
    "b": torch.tensor([[0.0, 1.0], [0.25, 0.75]]),
    "c": torch.tensor([[0.5, 0.5], [0.75, 0.25]]),
}


def test_the_teacher_is_the_mean_of_the_others() -> None:
    found = {name: mean_of_others(SENT, name) for name in (*SENT, "new")}
    assert {name: p.tolist() for name, p in found.items() if p is not None} == {
        "a": [[0.25, 0.75], [0.5, 0.5]],
        "b": [[0.75, 0.25], [0.625, 0.375]],
        "c": [[0.5, 0.5], [0.375, 0.625]],
        "new": torch.stack(list(SENT.values())).mean(dim=0).tolist(),
    }
    assert mean_of_others({"a": SENT["a"]}, "a") is None and mean_of_others({}, "a") is None


def test_only_those_with_the_same_labels_teach_each_other(tmp_path: Path) -> None:
    sent: dict[str, Tensor] = {}
    taught, layouts = set(), set()

    def look(message, reply):  # type: ignore[no-untyped-def]
        for key, value in message.content.array_records.items():
            name = key.partition("/")[0]
            alike_ = {other: before[other] for other in (GROUP if name in GROUP else TAGS)}
            want = mean_of_others(alike_, name)
            assert want is not None and torch.allclose(wire.unpack(value)["p"], want, atol=1e-6)
            taught.add(name)
        for key, value in reply.content.array_records.items():
            sent[key.partition("/")[0]] = wire.unpack(value)["p"]
            layouts.update((key.partition("-")[0], *entry) for entry in wire.read_layout(value).items())
        return reply

    before: dict[str, Tensor] = {}
    config = alike(tmp_path, algo="sage")
    for server_round in (1, 2):
        before = dict(sent)
        run({**config, "num-server-rounds": server_round, "resume": server_round > 1}, tamper=look)
    assert taught == {*TAGS, *GROUP}
    assert layouts == {
        ("group", "p", ("float32", (P, 9))),
        ("words", "p", ("float32", (P, 9))),
        ("tags", "p", ("float32", (P, 4))),
    }
    for name, p in sent.items():
        assert ((p >= 0) & (p <= 1)).all()
        assert name in TAGS or torch.allclose(p.sum(dim=1), torch.ones(P))
