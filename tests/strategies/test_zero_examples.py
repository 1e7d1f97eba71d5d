"""Replies that count for nothing: what the server has stays, bit for bit, and nothing is divided by zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedapps import wire
from fedapps.state import save_tree
from strategies.base import Reply, Strategy
from strategies.cofed import CoFED
from strategies.fd import FD
from tests.faults import config_of
from tests.replay import record, replay

COLA: list[dict[str, Any]] = [
    {"fedcola.aggregate": "sequential"},
    {"fedcola.compensate": False},
    {"fedcola.collab": False, "fedcola.compensate": False},
]
AVERAGES = ["fedavg", "fedprox", "fediot", "fedcola", "lg-fedavg", "fml", "fedapen", "fedkd", "fedmrl", "fedproto"]


def after_a_round(algo: str, folder: Path, **options: Any) -> tuple[Strategy, dict[str, Reply]]:
    """A server that has done a round, and the replies of that round as of participants without samples."""
    recorded = record(config_of(algo, folder, **{"num-server-rounds": 1, **options}))
    replies = {
        name: Reply(
            {key: wire.unpack(value) for key, value in records.items() if key not in (wire.METRICS, wire.EVALUATE)},
            metrics={},
            num_examples=0,
            seconds=0.0,
            bytes_up=0,
            test=None,
            num_tested=0,
        )
        for name, records in recorded.has((1, "train")).items()
    }
    assert replies
    return replay(recorded, {}).strategy, replies


def none_of_any_class(reply: Reply, record: str, counts: str = "counts") -> Reply:
    content = reply.records[record]
    return replace(reply, records={**reply.records, record: {**content, counts: torch.zeros_like(content[counts])}})


def answered(strategy: Strategy, replies: dict[str, Reply], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another round, in which these replies come."""

    def ask(*_: Any, into: Callable[[str, Reply], None] | None = None, **__: Any) -> dict[str, Reply]:
        for name, reply in replies.items() if into else ():
            into(name, reply)  # type: ignore[misc]
        return replies

    monkeypatch.setattr(strategy, "ask", ask)
    strategy.chosen = list(replies)
    strategy.train_round(2)


@pytest.mark.parametrize(("algo", "options"), [*((algo, {}) for algo in AVERAGES), *(("fedcola", o) for o in COLA)])
def test_replies_without_samples_change_nothing(
    algo: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, replies = after_a_round(algo, tmp_path, **options)
    if algo == "fedproto":  # which weighs by class
        replies = {name: none_of_any_class(reply, "prototypes") for name, reply in replies.items()}
    replies = {name: different(reply) for name, reply in replies.items()}
    save_tree(tmp_path / "before", strategy.state_dict())
    answered(strategy, replies, monkeypatch)
    save_tree(tmp_path / "after", strategy.state_dict())
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()
    counting = {name: replace(reply, num_examples=1) for name, reply in replies.items()}
    if algo != "fedproto":
        answered(strategy, counting, monkeypatch)
        save_tree(tmp_path / "counted", strategy.state_dict())
        assert (tmp_path / "before").read_bytes() != (tmp_path / "counted").read_bytes()


def different(reply: Reply) -> Reply:
    """Floats other than those that the server has averaged; classes' counts stay."""
    records = {
        record: {name: t + 1 if t.is_floating_point() and name != "counts" else t for name, t in tensors.items()}
        for record, tensors in reply.records.items()
    }
    return replace(reply, records=records)


def test_nobody_with_samples_of_any_class_gives_fd_no_targets(tmp_path: Path) -> None:
    strategy, replies = after_a_round("fd", tmp_path)
    assert isinstance(strategy, FD)
    assert all(targets["targets"]["means"].any() for targets in strategy.targets(list(replies)).values())
    strategy.outputs = {name: none_of_any_class(reply, "outputs").records["outputs"] for name, reply in replies.items()}
    targets = strategy.targets(list(replies))
    assert targets.keys() == replies.keys()
    assert not any(target["targets"]["means"].any() for target in targets.values()), "zeros, which add no loss"


def test_nobody_that_owns_a_class_gives_cofed_no_labels(tmp_path: Path) -> None:
    strategy, replies = after_a_round("cofed", tmp_path)
    assert isinstance(strategy, CoFED)
    strategy.sent = {
        name: dict(none_of_any_class(reply, "owned", "classes").records) for name, reply in replies.items()
    }
    content = strategy.content(list(replies))
    assert content.keys() == replies.keys()
    assert all((records["targets"]["labels"] == -1).all() for records in content.values())
