"""A participant of every method that misses a round, or a phase of one, and comes back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from fedapps.client_app import app
from fedapps.results.folder import read_rows, run_path
from fedapps.server_app import main
from fedapps.settings import read
from fedapps.state import Store, load_tree, save_tree
from simulations.in_process import RUN_ID, InProcessGrid, run
from tests.end_to_end.flower import metrics
from tests.faults import NODES, VARIANTS, config_of, lost, phase_of, phases_of

Missed = Callable[[int, str], bool]


class Gaps(InProcessGrid):
    """A grid on which one node misses the messages of some phases, or is gone between rounds.

    ``reached``: it gets them and does as it is told, and it is the replies that are lost.
    """

    def __init__(self, config: dict, node: int, missed: Missed, reached: bool, gone: int = 0) -> None:
        super().__init__(self.serve, NODES, run_config=config, tamper=self.deliver)  # type: ignore[arg-type]
        self.node, self.missed, self.reached, self.gone = node, missed, reached, gone
        self.round = 0

    def misses(self, message: Message) -> bool:
        return message.metadata.dst_node_id == self.node and self.missed(*phase_of(message))

    def serve(self, message: Message, context: Context) -> Message:
        self.round = max(self.round, phase_of(message)[0])
        return lost(message) if self.misses(message) and not self.reached else app(message, context)

    def deliver(self, message: Message, reply: Message) -> Message:
        return lost(message) if self.misses(message) else reply

    def get_node_ids(self) -> Iterable[int]:
        """The server asks at the start of each round, when the last message was of the round before."""
        return [node for node in super().get_node_ids() if node != self.node or self.round + 1 != self.gone]


def check(variant: str, folder: Path, node: int, missed: Missed, reached: bool = True, gone: int = 0) -> None:
    """Only the one on ``node`` ever fails, in the rounds that it missed; in the third it trains and is tested."""
    config = config_of(variant, folder)
    main(Gaps(config, node, missed, reached, gone), Context(RUN_ID, 0, {}, RecordDict(), config))
    settings, scenario = read(config)
    path, names = run_path(settings), list(scenario.by_name)
    name, rounds = names[node - 100], {r for r in (1, 2) if r == gone or any(missed(r, p) for p in phases_of(variant))}
    rows, got = read_rows(path / "metrics.jsonl"), metrics(path)
    assert {(row["round"], row["participant"]) for row in rows if "error" in row} == {(r, name) for r in rounds}
    trained = {who for r, phase, who in got if r == 3 and phase in phases_of(variant)}
    assert trained == {*names, "mean"}
    for r in (1, 2, 3):
        tested = {who for server_round, phase, who in got if (server_round, phase) == (r, "evaluate")}
        assert tested - {"server", "mean"} == set(names) - ({name} if r in rounds else set())
    assert all(math.isfinite(value) for values in got.values() for value in values.values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_that_no_message_of_the_first_round_reaches_comes_back(variant: str, tmp_path: Path) -> None:
    check(variant, tmp_path, 100, lambda server_round, _: server_round == 1, reached=False)


@pytest.mark.parametrize(("variant", "phase"), [(variant, p) for variant in VARIANTS for p in phases_of(variant)])
def test_one_whose_reply_is_lost_in_any_phase_comes_back(variant: str, phase: str, tmp_path: Path) -> None:
    """It has learned in that phase, and kept it."""
    node = 105 if phase == "alone" else 100  # the first with labels that nobody else has
    check(variant, tmp_path, node, lambda *when: when == (2, phase), reached=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_whose_node_goes_comes_back(variant: str, tmp_path: Path) -> None:
    check(variant, tmp_path, 100, lambda *_: False, gone=2)


def own(checkpoint: dict[str, Any], path: Path) -> bytes:
    """What of a checkpoint is the server's; the rest is what participants are known to have."""
    save_tree(path, {name: part for name, part in checkpoint.items() if name != "states"})
    return path.read_bytes()


@pytest.mark.parametrize(("variant", "phase"), [(variant, p) for variant in VARIANTS for p in phases_of(variant)])
def test_a_round_that_too_few_finish_leaves_no_trace_on_the_server(variant: str, phase: str, tmp_path: Path) -> None:
    """Whichever phase it fails in; the round after it is like any other."""
    config = config_of(variant, tmp_path)
    settings, scenario = read(config)
    path, names = run_path(settings), list(scenario.by_name)
    states: list[bytes] = []
    store = Store(path / "checkpoint")

    def tamper(message: Message, reply: Message) -> Message:
        if phase_of(message)[0] == 3 and not states:
            states.extend(own(load_tree(store.path(version)), tmp_path / "own") for version in store.versions())
        return lost(message) if phase_of(message) == (2, phase) else reply

    run({**config, "min-participants": len(names)}, NODES, tamper=tamper)
    assert len(states) == 2 and states[0] == states[1]
    got = metrics(path)
    assert {who for r, what, who in got if r == 3 and what in phases_of(variant)} == {*names, "mean"}
    assert all(math.isfinite(value) for values in got.values() for value in values.values())
    rows = read_rows(path / "metrics.jsonl")
    assert [row["round"] for row in rows if row["participant"] == "server" and "error" in row] == [2]
