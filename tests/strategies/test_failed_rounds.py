"""Rounds below min-participants, a dead process of the simulation, replies that come twice, a folder that is in use."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fedapps import wire
from fedapps.client_app import app
from fedapps.errors import RoundFailed, RunFailed, UserError
from fedapps.results.folder import RunFolder, check_run_folder, read_rows
from fedapps.scenario import folder
from fedapps.server_app import main
from fedapps.settings import read
from fedapps.state import Store, load_tree, save_tree
from simulations.in_process import RUN_ID, InProcessGrid, run
from strategies.base import Strategy
from tests.end_to_end.flower import metrics
from tests.helpers import Clock

Tamper = Callable[[Message, Message], Message]


@pytest.fixture
def tiny(tmp_path: Path) -> dict:
    rounds = {"num-server-rounds": 3, "min-participants": 2}
    return {"algo": "fedavg", "scenario": "cola-tiny", "results-dir": str(tmp_path), "run-name": "r", **rounds}


def failing(*rounds: int, phase: str = "train") -> Tamper:
    """Everybody fails in a phase of these rounds."""

    def tamper(message: Message, reply: Message) -> Message:
        if message.metadata.message_type.endswith(phase) and int(message.metadata.group_id) in rounds:
            names = {key.partition("/")[0] for key in reply.content}
            errors = {f"{name}/{wire.ERROR}": ConfigRecord({"error": "no power"}) for name in names}
            reply.content = RecordDict(errors)
        return reply

    return tamper


def test_a_failed_round_is_skipped_and_said(tiny: dict) -> None:
    path = run(tiny, tamper=failing(2))
    about, rows = json.loads((path / "run.json").read_text()), read_rows(path / "metrics.jsonl")
    assert about["status"] == "finished"
    (told,) = [row for row in rows if row["participant"] == "server" and "error" in row]
    assert told["round"] == 2 and told["error"].startswith(
        "round 2, train: 0 good replies, min-participants is 2 (image"
    )
    assert {row["round"] for row in rows if row["phase"] == "train" and row.get("metrics")} == {1, 3}
    assert json.loads((path / "summary.json").read_text())["failures"]["server"] == 1


def test_a_skipped_round_leaves_the_server_as_it_was(tiny: dict) -> None:
    """FedMuscle fails in the last of a round's phases, FedAFD when the server has learned from public data already."""
    for algo, scenario, phase in (("fedmuscle", "muscle-tiny", "train"), ("fedafd", "emoji-tiny", "train")):
        config = {**tiny, "algo": algo, "scenario": scenario, "run-name": algo}
        path = run({**config, "num-server-rounds": 2}, tamper=failing(2, phase=phase))
        store = Store(path / "checkpoint")
        assert store.versions() == [(1, 0), (2, 0)]
        for name in ("before", "after"):  # what participants have is not the server's own
            tree = load_tree(store.path((1 if name == "before" else 2, 0)))
            save_tree(path / f"{name}.safetensors", {key: part for key, part in tree.items() if key != "states"})
        assert (path / "before.safetensors").read_bytes() == (path / "after.safetensors").read_bytes(), algo


def test_failed_rounds_in_a_row_end_the_run_which_can_go_on(tiny: dict) -> None:
    tiny |= {"num-server-rounds": 5, "max-failed-rounds": 2}
    with pytest.raises(RunFailed, match=r"round 4, train: .* failed rounds in a row: 2, max-failed-rounds is 2"):
        run(tiny, tamper=failing(1, 3, 4))
    path = Path(tiny["results-dir"], "r")
    assert json.loads((path / "run.json").read_text())["status"] == "failed"
    resumed = metrics(run({**tiny, "resume": True}))
    whole = metrics(run({**tiny, "run-name": "whole"}, tamper=failing(1, 3)))
    assert resumed == whole, "the round that ended it was done again"


def test_a_run_stopped_before_its_first_round_is_over_starts_from_the_same_models(tiny: dict) -> None:
    whole = metrics(run({**tiny, "algo": "fedafd", "scenario": "emoji-tiny", "run-name": "whole"}))
    config = {**tiny, "algo": "fedafd", "scenario": "emoji-tiny", "max-failed-rounds": 1}
    with pytest.raises(RunFailed):
        run(config, tamper=failing(1))
    before = [row for row in read_rows(Path(tiny["results-dir"], "r", "metrics.jsonl")) if row["round"] == 0]
    path = run({**config, "resume": True})
    assert metrics(path) == whole
    assert [row for row in read_rows(path / "metrics.jsonl") if row["round"] == 0] == before, "it was not made again"


def test_a_dead_process_of_the_simulation_ends_the_run(tiny: dict) -> None:
    reason = (
        "<class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly before finishing this task.\n\tpid: 7'>"
    )

    def tamper(message: Message, reply: Message) -> Message:
        if message.metadata.group_id == "2" and message.metadata.dst_node_id == 101:
            reply = Message(Error(0, reason), reply_to=message)
            reply.metadata.__dict__["_message_id"] = "e"
        return reply

    with pytest.raises(
        RunFailed, match=r"process of the simulation died, .* resume=true run-name=r results-dir=.*; for fewer"
    ):
        run(tiny, tamper=tamper)
    assert metrics(run({**tiny, "resume": True})) == metrics(run({**tiny, "run-name": "whole"}))


class Twice(InProcessGrid):
    """Delivers every reply two times."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for reply in super().pull_messages(message_ids) for _ in range(2)]


def test_a_reply_that_comes_twice_counts_once(tiny: dict) -> None:
    main(Twice(app, 2, run_config=tiny), Context(RUN_ID, 0, {}, RecordDict(), tiny))
    once, twice = run({**tiny, "run-name": "once"}), Path(tiny["results-dir"], "r")
    assert metrics(once) == metrics(twice)
    assert len(read_rows(once / "metrics.jsonl")) == len(read_rows(twice / "metrics.jsonl"))


def test_a_run_folder_has_one_process_at_work(tiny: dict) -> None:
    first = RunFolder(*read(tiny))
    again = read({**tiny, "resume": True})
    for use in (check_run_folder, RunFolder):
        with pytest.raises(UserError, match=r"resume: .*/r: this run is still going on; wait for its end, or stop it"):
            use(*again)
    first.end("stopped")
    RunFolder(*again).end()


class Late(InProcessGrid):
    """A node's reply to a message of round 1 comes in round 2."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = {message_id: self.pushed.get(message_id) for message_id in message_ids}
        held = {i for i, m in asked.items() if m is not None and m.metadata.group_id == "1" and _to_the_first(m)}
        return super().pull_messages([message_id for message_id in asked if message_id not in held])

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if any(message.metadata.group_id == "2" for message in messages):
            super().pull_messages(list(self.pushed))  # it trains now, and its reply is fetched by nobody
        return super().push_messages(messages)


def _to_the_first(message: Message) -> bool:
    return message.metadata.dst_node_id == 100 and message.metadata.message_type != "query.hello"


@pytest.mark.usefixtures("clock")
def test_a_late_reply_is_not_read(tiny: dict) -> None:
    tiny |= {"round-timeout": 60.0, "min-participants": 1}
    main(Late(app, 2, run_config=tiny), Context(RUN_ID, 0, {}, RecordDict(), tiny))
    path = Path(tiny["results-dir"], "r")
    late = [(row["round"], row["participant"]) for row in read_rows(path / "metrics.jsonl") if "error" in row]
    lost = run({**tiny, "run-name": "lost"}, tamper=lambda m, r: None if _in_round_1(m) and _to_the_first(m) else r)
    assert late and {number for number, _ in late} == {1} and metrics(path) == metrics(lost)


def _in_round_1(message: Message) -> bool:
    return message.metadata.group_id == "1"


@pytest.mark.parametrize("code", [3, 4])
def test_a_message_that_has_expired_is_a_late_reply(code: int, tiny: dict) -> None:
    """Messages live for round-timeout; Flower then says so in words of its own."""
    lives = set()

    def tamper(message: Message, reply: Message) -> Message:
        lives.add(message.metadata.ttl)
        if _in_round_1(message) and _to_the_first(message):
            reply = Message(Error(code, "Error: Message Unavailable - The requested message"), reply_to=message)
            reply.metadata.__dict__["_message_id"] = "e"
        return reply

    path = run({**tiny, "round-timeout": 77.0}, tamper=tamper)
    told = {row["error"] for row in read_rows(path / "metrics.jsonl") if "error" in row}
    assert told == {"no reply within 77 s"} and lives == {1.25 * 77}


class Hanging(InProcessGrid):
    """The first node never answers in round 1; replies of others are gone a second after they were asked for."""

    clock: Clock

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = list(super().push_messages(messages))
        self.asked = {**getattr(self, "asked", {}), **dict.fromkeys(ids, self.clock.now)}
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = []
        for message_id in message_ids:
            asked = self.pushed.get(message_id)
            if asked is None or (_in_round_1(asked) and _to_the_first(asked)):
                continue
            if self.clock.now < self.asked[message_id] + 1:
                found += super().pull_messages([message_id])
            else:
                found.append(Message(Error(4, "expired"), reply_to=self.pushed.pop(message_id)))
        return found


def test_one_that_hangs_takes_nobody_with_it(tiny: dict, clock: Clock) -> None:
    """In time is what has come by the deadline, whoever is waited for meanwhile."""
    grid = Hanging(app, 3, run_config=(config := {**tiny, "round-timeout": 60.0, "min-participants": 1}))
    grid.clock = clock
    main(grid, Context(RUN_ID, 0, {}, RecordDict(), config))
    late = {row["participant"] for row in read_rows(Path(tiny["results-dir"], "r", "metrics.jsonl")) if "error" in row}
    assert clock.now >= 60 and late == set(hosted_by_the_first(tiny))


def hosted_by_the_first(config: dict) -> list[str]:
    return list(read(config)[1].by_name)[::3]


class Restarted(InProcessGrid):
    """After round 1 the first node comes back under another id, with another version of the code."""

    def __init__(self, config: dict) -> None:
        super().__init__(app, 2, run_config=config, tamper=self.deliver)
        self.contexts[102] = self.contexts[100]
        self.tested = False

    def deliver(self, message: Message, reply: Message) -> Message:
        self.tested |= message.metadata.message_type == "evaluate"
        if message.metadata.message_type == "query.hello" and message.metadata.dst_node_id == 102:
            reply.content["config"]["code-hash"] = "0" * 64
        return reply

    def get_node_ids(self) -> Iterable[int]:
        return [101, 102] if self.tested else [100, 101]


def test_a_node_that_comes_back_with_other_code_is_left_out(tiny: dict, caplog: pytest.LogCaptureFixture) -> None:
    """At the start it would end the run; in the middle it must not."""
    tiny |= {"min-participants": 1}
    main(Restarted(tiny), Context(RUN_ID, 0, {}, RecordDict(), tiny))
    path, names = Path(tiny["results-dir"], "r"), list(read(tiny)[1].by_name)
    assert json.loads((path / "run.json").read_text())["status"] == "finished"
    out = {(r["round"], r["participant"], r["error"]) for r in read_rows(path / "metrics.jsonl") if "error" in r}
    assert out == {(r, name, "no node hosts it now") for r in (2, 3) for name in names[::2]}
    assert "a node that has come is left out: the node on" in caplog.text and "runs other code" in caplog.text


def test_training_that_diverges_is_told_with_what_helps(tiny: dict) -> None:
    """Under FedAvg nothing is kept, and the loss is the first to tell."""
    with pytest.raises(RunFailed, match=r"image-0: training diverged: .*; take a smaller learning rate"):
        run({**tiny, "learning-rate": 1e30, "max-failed-rounds": 1})


@pytest.mark.parametrize(("rate", "told"), [(1e10, "'model/.*' holds NaN or infinity"), (1e20, "task_loss is nan")])
def test_a_server_whose_own_training_diverges_says_so(rate: float, told: str, tiny: dict, tmp_path: Path) -> None:
    """Nobody is sent such a model, and no checkpoint is made of it."""
    about = yaml.safe_load((folder() / "emoji-tiny.yaml").read_text())
    about["server"]["train"]["learning-rate"] = rate
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(about))
    told = f"the server's training diverged: {told}; take a smaller learning rate for it"
    with pytest.raises(UserError, match=told):
        run({**tiny, "algo": "fedafd", "scenario": str(tmp_path / "s.yaml")})
    path = tmp_path / "r"
    assert json.loads((path / "run.json").read_text())["reason"].startswith("the server's training diverged")
    assert not Store(path / "checkpoint").versions()


def test_where_fewer_than_min_participants_train_all_of_them_are_enough(tiny: dict) -> None:
    """Two of these have texts only; nobody is waited for in vain."""
    config = {**tiny, "train-only": "text", "min-participants": 6, "round-timeout": 30.0, "num-server-rounds": 1}
    started = time.monotonic()
    rows = read_rows(run(config) / "metrics.jsonl")
    trained = {row["participant"] for row in rows if row["phase"] == "train"}
    assert not [row for row in rows if "error" in row] and trained == {"text-0", "text-1", "mean"}
    assert time.monotonic() - started < 30


def test_the_reason_of_a_failed_round_names_participants_in_their_order() -> None:
    """Not in that in which they have failed, which no second run would have."""
    scenario, settings = SimpleNamespace(by_name=dict.fromkeys("abc")), SimpleNamespace(min_participants=2)
    strategy: Any = SimpleNamespace(round=3, scenario=scenario, settings=settings)
    with pytest.raises(RoundFailed, match=r"round 3, train: 1 good replies, min-participants is 2 \(a: one; c: two\)"):
        Strategy.need(strategy, 2, 1, "train", {"c": "two", "a": "one"})
    Strategy.need(strategy, 2, 2, "train", {"c": "two"})
