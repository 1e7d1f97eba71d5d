"""Nodes that come, go, hang and come back in the middle of a run, and messages that are not sent."""

from __future__ import annotations

import dataclasses
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

from fedapps.client_app import app
from fedapps.errors import RunFailed
from fedapps.methods import METHODS
from fedapps.results.folder import read_rows
from fedapps.server_app import main
from fedapps.settings import read
from simulations.in_process import RUN_ID, InProcessGrid, run
from strategies import base, nodes
from strategies.post import PULLED, Post
from tests.end_to_end.flower import metrics
from tests.faults import lost, phase_of

ALL = "image-0 text-0 mm-0 mm-1"


@pytest.fixture
def local(tiny: dict) -> dict:
    return {**tiny, "algo": "local", "num-server-rounds": 4, "round-timeout": 20.0}


def is_hello(message: Message) -> bool:
    return message.metadata.message_type == "query.hello"


class Nodes(InProcessGrid):
    """A grid whose nodes come and go: ``there`` says by the last round that was trained which of them are there."""

    def __init__(self, config: dict, nodes: list[str], there: Callable[[int], set[int]], **options: Any) -> None:
        configs = [{"participant": names, "state-dir": config["results-dir"] + "/site"} for names in nodes]
        super().__init__(app, len(nodes), configs, config, **options)
        self.there, self.round, self.hellos = there, 0, list[int]()

    def get_node_ids(self) -> Iterable[int]:
        return [100 + i for i in self.there(self.round)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.hellos += [m.metadata.dst_node_id for m in messages if is_hello(m)]
        self.round = max([self.round, *(phase_of(m)[0] for m in messages)])
        return super().push_messages(messages)


def play(config: dict, grid: InProcessGrid) -> tuple[list[dict], set[tuple[int, str]]]:
    """The rows of a run, and (round, participant) of those that were left out."""
    main(grid, Context(RUN_ID, 0, {}, RecordDict(), config))
    rows = read_rows(Path(config["results-dir"], config["run-name"], "metrics.jsonl"))
    return rows, {(row["round"], row["participant"]) for row in rows if "error" in row}


@pytest.fixture
def slow_hellos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "HELLO", 0.3)


@pytest.fixture
def patiences(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which each exchange would have waited."""
    found: list[float] = []
    plain = Post.pull

    def pull(self: Post, waiting: dict[str, Any], patience: float) -> Any:
        found.append(patience)
        return plain(self, waiting, patience)

    monkeypatch.setattr(Post, "pull", pull)
    return found


@pytest.mark.usefixtures("slow_hellos")
def test_a_node_that_never_says_whom_it_hosts_holds_up_one_round(local: dict, patiences: list[float]) -> None:
    """It is asked once, in round 2, and waited for as long as that may take."""
    mute = Nodes(local, [ALL, "image-0"], lambda done: {0} if done < 1 else {0, 1})
    mute.tamper = lambda message, reply: None if is_hello(message) and message.metadata.dst_node_id == 101 else reply
    started = time.monotonic()
    _, out = play(local, mute)
    assert not out and mute.hellos.count(101) == 1 and time.monotonic() - started < 20, "round-timeout"
    assert patiences.count(nodes.HELLO) == 1


@pytest.mark.usefixtures("clock")
def test_no_node_that_is_new_is_waited_for_longer_than_for_a_reply(local: dict, patiences: list[float]) -> None:
    mute = Nodes(local, [ALL, "image-0"], lambda done: {0} if done < 1 else {0, 1})
    mute.tamper = lambda message, reply: None if is_hello(message) and message.metadata.dst_node_id == 101 else reply
    _, out = play({**local, "num-server-rounds": 2, "round-timeout": 20.0}, mute)
    assert not out and max(patiences) == 20.0 < nodes.HELLO


class Slow(Nodes):
    """A node takes a round to say whom it hosts."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = {i: self.pushed[i] for i in message_ids if i in self.pushed}
        held = {i for i, m in asked.items() if is_hello(m) and m.metadata.dst_node_id == 101 and self.round < 2}
        return super().pull_messages([i for i in asked if i not in held])


@pytest.mark.usefixtures("slow_hellos")
def test_a_node_that_takes_long_to_say_whom_it_hosts_is_met_when_it_does(local: dict) -> None:
    grid = Slow(local, [ALL, "image-0 text-0"], lambda done: {0} if done < 1 else {0, 1})
    _, out = play(local, grid)
    assert not out and grid.hellos.count(101) == 1


@pytest.mark.usefixtures("slow_hellos")
def test_a_node_that_went_before_it_had_said_whom_it_hosts_is_asked_when_it_is_back(local: dict) -> None:
    grid = Nodes(local, [ALL, "image-0"], lambda done: {0, 1} if done in (1, 3) else {0})

    def mute(message: Message, reply: Message) -> Message | None:
        return None if is_hello(message) and message.metadata.dst_node_id == 101 and grid.round < 2 else reply

    grid.tamper = mute
    _, out = play(local, grid)
    assert not out and grid.hellos.count(101) == 2


def test_a_node_that_hangs_at_the_start_does_not_keep_others_from_beginning(local: dict) -> None:
    grid = Nodes(local, [ALL, "image-0"], lambda _: {0, 1})
    grid.tamper = lambda message, reply: None if is_hello(message) and message.metadata.dst_node_id == 101 else reply
    _, out = play({**local, "num-server-rounds": 1}, grid)
    assert not out


class Outage(Nodes):
    """All nodes are away for a second after round 1."""

    back = 0.0

    def get_node_ids(self) -> Iterable[int]:
        if self.round == 1 and not self.back:
            self.back = time.monotonic() + 1
        return [] if time.monotonic() < self.back else super().get_node_ids()


def test_nodes_that_are_all_away_for_a_while_are_waited_for(local: dict) -> None:
    """As in an outage of the network: no round is lost, and the metrics are those of a run without it."""
    _, out = play(local, Outage(local, [ALL], lambda _: {0}))
    assert not out
    assert metrics(Path(local["results-dir"], "r")) == metrics(run({**local, "run-name": "whole"}))


@pytest.mark.usefixtures("clock")
def test_nodes_that_stay_away_end_the_run_by_the_deadlines(local: dict) -> None:
    config = {**local, "max-failed-rounds": 2}
    with pytest.raises(RunFailed, match=r"round 3, train: 0 good replies, .*no node hosts it now"):
        play(config, Nodes(config, [ALL], lambda done: {0} if done < 1 else set()))


def test_a_participant_goes_back_to_its_first_node_when_a_second_has_gone(local: dict) -> None:
    """Started by mistake after round 1, and stopped after round 2; the first had been there all the time."""
    trained: dict[int, int] = {}

    def note(message: Message, reply: Message) -> Message:
        if "image-0/metrics" in reply.content:
            trained[phase_of(message)[0]] = message.metadata.dst_node_id
        return reply

    grid = Nodes(local, [ALL, "image-0"], lambda done: {0, 1} if done == 1 else {0}, tamper=note)
    _, out = play(local, grid)
    assert not out and grid.hellos == [100, 101] and trained == {1: 100, 2: 101, 3: 100, 4: 100}


@pytest.mark.parametrize(("key", "other"), [("num-classes", 99), ("label-sets", "of other names")])
def test_a_node_whose_data_have_other_classes_now_is_left_out(
    key: str, other: int | str, local: dict, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of those that it hosts beside the changed one: a node is taken up as a whole."""

    def changed(message: Message, reply: Message) -> Message:
        if is_hello(message) and message.metadata.dst_node_id == 101:
            of_all: Any = reply.content["config"][key]
            reply.content["config"][key] = [*of_all[:-1], other]
        return reply

    nodes = ["image-0 text-0", "image-0 text-0", "mm-0 mm-1"]
    grid = Nodes(local, nodes, lambda done: {0, 2} if done < 1 else {1, 2}, tamper=changed)
    started = time.monotonic()
    _, out = play(local, grid)
    assert time.monotonic() - started < 20, "round-timeout: enough of the others are there"
    assert out == {(r, name) for r in (2, 3, 4) for name in ("image-0", "text-0")}
    assert "a node that has come is left out: the data of text-0 on" in caplog.text


def test_a_node_that_comes_back_with_more_samples_trains_with_them(local: dict) -> None:
    def more(message: Message, reply: Message) -> Message:
        if is_hello(message) and message.metadata.dst_node_id == 101:
            counts: Any = reply.content["config"]["num-examples"]
            reply.content["config"]["num-examples"] = [count + 5 for count in counts]
        elif message.metadata.dst_node_id == 101:
            values = dict(reply.content["image-0/metrics"])
            reply.content["image-0/metrics"] = MetricRecord({**values, "num-examples": values["num-examples"] + 5})
        return reply

    rows, out = play(local, Nodes(local, [ALL, ALL], lambda done: {0} if done < 1 else {1}, tamper=more))
    assert not out
    trained = [row["num_examples"] for row in rows if (row["phase"], row["participant"]) == ("train", "image-0")]
    assert trained == [48, 53, 53, 53]


def test_a_node_that_comes_back_has_a_moment_to_say_whom_it_hosts(local: dict) -> None:
    """Also where the round could do without it."""

    class Moment(Nodes):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            asked = {i: self.pushed[i] for i in message_ids if i in self.pushed}
            soon = {i for i, m in asked.items() if is_hello(m) and time.time() < m.metadata.created_at + 0.5}
            return super().pull_messages([i for i in asked if i not in soon])

    nodes = ["image-0 text-0", "image-0 text-0", "mm-0 mm-1"]
    grid = Moment(local, nodes, lambda done: {0, 2} if done < 1 else {1, 2})
    _, out = play({**local, "min-participants": 1}, grid)
    assert not out


def test_a_node_that_was_left_out_is_asked_again(local: dict) -> None:
    """Twice it runs other code; after round 2 somebody has mended that."""

    def mended(message: Message, reply: Message) -> Message:
        if is_hello(message) and message.metadata.dst_node_id == 101 and grid.hellos.count(101) < 3:
            reply.content["config"]["code-hash"] = "0" * 64
        return reply

    nodes = ["image-0 text-0", "image-0 text-0", "mm-0 mm-1"]
    grid = Nodes(local, nodes, lambda done: {0, 2} if done < 1 else {1, 2}, tamper=mended)
    _, out = play(local, grid)
    assert out == {(2, "image-0"), (2, "text-0")} and grid.hellos.count(101) == 3


def test_a_node_of_an_older_version_is_told_so(local: dict) -> None:
    """Whatever its first answer lacks."""

    def older(message: Message, reply: Message) -> Message:
        about = reply.content["config"]
        for key in list(about):
            if key != "participants":
                del about[key]
        return reply

    with pytest.raises(RunFailed, match="the node on an unknown host runs other code, from None"):
        run(local, tamper=older)


BROKEN = {  # as Flower's SuperNodes, its simulation, and a SuperNode whose process has died tell of it
    2: ("<class 'ImportError'>:<'libnone.so: cannot open'>", "ImportError: libnone.so: cannot open"),
    0: (
        "<class 'ray.exceptions.RayTaskError(E)'>:<'ray::run()\n  File\nImportError: a module'>",
        "ImportError: a module",
    ),
    8: ("ClientApp stopped responding.", "ClientApp stopped responding."),
}


def unable(code: int, times: int = 99) -> Callable[[Message, Message], Message]:
    """A second node that says, ``times`` times, that it cannot run the app."""
    told = []

    def tamper(message: Message, reply: Message) -> Message:
        if not is_hello(message) or message.metadata.dst_node_id != 101 or len(told) == times:
            return reply
        told.append(message)
        return error_of(message, code, BROKEN[code][0])

    return tamper


def error_of(message: Message, code: int, reason: str) -> Message:
    reply = Message(Error(code, reason), reply_to=message)
    reply.metadata.__dict__["_message_id"] = "e"
    return reply


@pytest.mark.parametrize("code", BROKEN)
def test_a_node_that_cannot_run_the_app_ends_the_run_at_its_start(code: int, local: dict) -> None:
    """Whatever round-timeout is; it is asked twice."""
    config = {**local, "round-timeout": 3600.0}
    grid = Nodes(config, ["image-0 text-0", "mm-0 mm-1"], lambda _: {0, 1}, tamper=unable(code))
    with pytest.raises(RunFailed, match=f"^node 101 cannot run the app: {re.escape(BROKEN[code][1])}; its log"):
        play(config, grid)
    assert grid.hellos == [100, 101, 101]


def test_a_node_that_cannot_run_the_app_yet_is_asked_once_more(local: dict) -> None:
    """Another process of its machine may just be unpacking the app."""
    _, out = play(local, Nodes(local, ["image-0 text-0", "mm-0 mm-1"], lambda _: {0, 1}, tamper=unable(2, times=1)))
    assert not out


def test_a_node_that_comes_back_unable_to_run_the_app_is_left_out(
    local: dict, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked in each round, not all the time."""
    nodes = ["image-0 text-0", "image-0 text-0", "mm-0 mm-1"]
    grid = Nodes(local, nodes, lambda done: {0, 2} if done < 1 else {1, 2}, tamper=unable(2))
    _, out = play({**local, "min-participants": 1}, grid)
    assert out == {(r, name) for r in (2, 3, 4) for name in ("image-0", "text-0")}
    assert "a node that has come is left out: node 101 cannot run the app: ImportError: libnone.so" in caplog.text
    assert 3 <= grid.hellos.count(101) <= 6


def test_a_method_that_cannot_be_loaded_at_a_node_ends_the_run(local: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client half needs a library that the server's does not."""
    host, client = platform.node(), dataclasses.replace(METHODS["local"], client="clients.none:app")
    monkeypatch.setitem(METHODS, "local", client)
    why = f"the node on {host}: clients.none:app cannot be loaded: ModuleNotFoundError: No module named 'clients.none'"
    with pytest.raises(RunFailed, match=f"^{re.escape(why)}$"):
        run(local)


def test_the_client_app_is_whole_before_the_server_app_is_at_work() -> None:
    """A simulation loads both in threads of one process, and does not wait for a module that another thread imports."""
    code = "import sys, fedapps.server_app; assert 'app' in vars(sys.modules['fedapps.client_app'])"
    assert not subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode


def test_a_node_of_another_app_or_with_a_stranger_is_told_so(local: dict) -> None:
    def other(_: Message, reply: Message) -> Message:
        reply.content = RecordDict({"metrics": MetricRecord({"loss": 1.0})})
        return reply

    def stranger(_: Message, reply: Message) -> Message:
        names: Any = reply.content["config"]["participants"]
        reply.content["config"]["participants"] = [*names[:-1], "stranger-0"]
        return reply

    with pytest.raises(RunFailed, match="something else; it runs another app"):
        run(local, tamper=other)
    with pytest.raises(RunFailed, match="hosts 'stranger-0', which is not in scenario emoji-tiny"):
        run({**local, "run-name": "stranger"}, tamper=stranger)


@pytest.mark.parametrize(
    ("key", "value"),
    [("participants", None), ("num-examples", []), ("num-examples", 3), ("num-classes", ["a"]), ("public-hash", None)],
)
def test_a_node_that_does_not_say_well_whom_it_hosts_is_told_so_and_harms_no_run(
    key: str, value: Any, local: dict
) -> None:
    def damage(message: Message, reply: Message) -> Message:
        if is_hello(message) and message.metadata.dst_node_id == 101:
            about = {k: v for k, v in reply.content["config"].items() if k != key}
            reply.content["config"] = ConfigRecord(about if value is None else about | {key: value})
        return reply

    told = "other public data" if key == "public-hash" else "does not say whom it hosts in a way that can be read"
    with pytest.raises(base.RunFailed, match=f"the node on .* {told}"):
        play(local, Nodes(local, ["image-0 text-0 mm-0", "mm-1"], lambda done: {0, 1}, tamper=damage))
    config = {**local, "run-name": "later", "num-server-rounds": 2}
    _, out = play(config, Nodes(config, [ALL, "mm-1"], lambda done: {0} if done < 1 else {0, 1}, tamper=damage))
    assert not out


class Untaken(InProcessGrid):
    """Flower does not take the messages of round 2 to the first node: it leaves their ids out, or says None."""

    def __init__(self, config: dict, told: list[Any]) -> None:
        super().__init__(app, 2, run_config=config)
        self.told = told

    def push_messages(self, messages: Iterable[Message]) -> Iterable[Any]:
        found: list[Any] = []
        for message in messages:
            refused = message.metadata.dst_node_id == 100 and phase_of(message)[0] == 2
            found += self.told if refused else super().push_messages([message])
        return found


@pytest.mark.parametrize("told", [[], [None], [""]])
def test_a_message_that_flower_does_not_take_is_no_reply(told: list[Any], local: dict) -> None:
    rows, out = play({**local, "num-server-rounds": 3}, Untaken(local, told))
    assert out == {(2, name) for name in list(read(local)[1].by_name)[::2]}
    assert {row["error"] for row in rows if "error" in row} == {"its message could not be sent; its node may have gone"}


def test_a_reply_to_no_message_is_not_read(local: dict) -> None:
    class Unasked(InProcessGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            replies = list(super().pull_messages(message_ids))
            for reply in replies[:1]:
                other = Message(RecordDict(dict(reply.content)), reply_to=reply)
                other.metadata.__dict__["_reply_to_message_id"] = "nobody's"
                replies = [other, *replies]
            return replies

    _, out = play(local, Unasked(app, 2, run_config=local))
    assert not out
    assert metrics(Path(local["results-dir"], "r")) == metrics(run({**local, "run-name": "whole"}))


@pytest.mark.parametrize("size", [1, 3])
def test_a_message_that_is_lost_is_of_those_that_it_serves(
    size: int, local: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's participants come in several messages; one of these fails, and how they are cut changes nothing else."""
    whole = metrics(run({**local, "run-name": "whole"}, 1))
    monkeypatch.setattr(base, "PER_MESSAGE", size)
    assert metrics(run({**local, "run-name": "cut"}, 1)) == whole

    def tamper(message: Message, reply: Message) -> Message:
        names = [name for name in ALL.split() if f"{name}/metrics" in reply.content]
        return lost(message) if phase_of(message) == (4, "train") and "text-0" in names else reply

    rows = read_rows(run(local, 1, tamper=tamper) / "metrics.jsonl")
    out = {(row["round"], row["participant"]) for row in rows if "error" in row}
    assert out == {(4, name) for name in ALL.split()[: 3 if size == 3 else 2] if size == 3 or name == "text-0"}
    got = metrics(Path(local["results-dir"], "r"))
    assert all(got[key] == whole[key] for key in whole if key[2] in ALL and (key[0], key[2]) not in out)


def test_few_replies_are_fetched_at_a_time(local: dict) -> None:
    """However many there are to come: what has been fetched is in memory."""
    asked = []

    class Counting(InProcessGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            asked.append(len(message_ids := list(message_ids)))
            return super().pull_messages(message_ids)

    _, out = play({**local, "num-server-rounds": 1}, Counting(app, 10, run_config=local))
    assert not out and max(asked) == PULLED < 10
