"""The one loop that every method runs in, and ``ask``: one exchange with the participants."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from torch import Tensor

from fedapps import wire
from fedapps.contract import Contract
from fedapps.errors import RoundFailed, RunFailed, UserError
from fedapps.holdings import Holdings
from fedapps.methods import method
from fedapps.results.folder import RunFolder
from fedapps.results.progress import Progress
from fedapps.scenario import Scenario
from fedapps.seeds import generator
from fedapps.settings import Settings
from fedapps.state import Version
from strategies.nodes import Nodes
from strategies.post import EXPIRED, Post, short, split

Content = Mapping[str, Mapping[str, Tensor]]
"""Record name -> tensors by name."""

PER_MESSAGE = 8
"""Participants of one node that a message serves at most."""


@dataclass(frozen=True)
class Reply:
    """What one participant answered in a phase; ``test`` where the phase ended with an evaluation."""

    records: dict[str, dict[str, Tensor]]
    metrics: dict[str, float]
    num_examples: int
    seconds: float
    bytes_up: int
    test: dict[str, float] | None
    num_tested: int
    test_seconds: float = 0.0
    began_from: Version | None = None  # the personal state that was loaded; (0, 0) where there was none to load
    keeps: bool = False  # whether it has left a new one


class Strategy(FlowerStrategy):
    """A method's server half.

    A method overrides ``train_round`` (and, where it has one, ``evaluate_server``), and names what it must not
    forget in ``parts``. ``ask`` does an exchange; the loop in ``start`` does the rest: it waits for the
    participants, samples them, records, checkpoints and resumes.

    Parameters
    ----------
    settings : Settings
        The checked run-config.
    scenario : Scenario
        Who takes part.
    holdings : Holdings
        The server's view of the data: public data and its own test data.
    run : RunFolder
        Where results go.
    """

    def __init__(self, settings: Settings, scenario: Scenario, holdings: Holdings, run: RunFolder) -> None:
        self.settings = settings
        self.scenario = scenario
        self.holdings = holdings
        self.run = run
        self.method = method(settings.algo)
        self.post = Post(settings, run)
        self.nodes = Nodes(settings, scenario, holdings, self.post, self.config)
        self.examples, self.classes, self.labels = self.nodes.examples, self.nodes.classes, self.nodes.labels
        self.chosen: list[str] = []  # participants of this round
        self.evaluated: dict[str, dict[str, float]] = {}  # test metrics of this round
        self.failed: set[str] = set()  # participants that have failed in this round
        self.states: dict[str, Version] = {}  # participant -> the personal state that it is known to have
        self.round = 0
        self.step = 0

    # --------------------------------------------------------------------------- what a method overrides

    def train_round(self, server_round: int) -> None:
        """One round of training. Default: one ``train`` phase in which nothing is exchanged."""
        self.ask("train")

    def check(self, name: str, reply: Reply) -> None:
        """``WireError`` where the numbers of a reply are beyond what the method's definition allows."""

    def evaluate_content(self, names: list[str]) -> Mapping[str, Content]:
        """What participants need for an evaluation of their own."""
        return {}

    def evaluate_server(self) -> dict[str, float] | None:
        """Metrics of the server's own model, if it has one."""
        return None

    def setup(self) -> None:
        """What is built once it is known who takes part, before a checkpoint is loaded."""

    def prepare(self) -> None:
        """What comes before the first round of a new run (not of a resumed one)."""

    def parts(self) -> dict[str, Any]:
        """Modules, optimisers and the like that a checkpoint must hold, by name."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What ``load_state_dict`` restores."""
        return {name: part.state_dict() for name, part in self.parts().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        for name, part in self.parts().items():
            part.load_state_dict(state[name])

    # ------------------------------------------------------------------------------------------- the loop

    def start(  # type: ignore[override]
        self, grid: Grid, initial_arrays: ArrayRecord | None = None, num_rounds: int | None = None, **_: Any
    ) -> Result:
        """Run all rounds; results are in the run folder."""
        self.post.grid = grid
        num_rounds = num_rounds or self.settings.num_server_rounds
        self.nodes.meet_all()
        self.setup()
        done = self.resume()
        if done is None:
            done = 0
            self.prepare()
            self.record_server()
            self.save(done)
        if done >= num_rounds:
            log(WARNING, "%d rounds are done already, num-server-rounds is %d: nothing was trained", done, num_rounds)
        progress = Progress(self.run, self.scenario, num_rounds, done + 1)
        failed = 0
        for self.round in range(done + 1, num_rounds + 1):
            self.step, self.evaluated, self.failed = 0, {}, set()
            self.chosen = self.sample()
            self.nodes.gather(self.chosen)
            try:
                self.train_round(self.round)
                failed = 0
            except RoundFailed as error:
                failed += 1
                self.skip(error, failed)
            self.evaluate_round()
            progress.record(self.round)  # before it is saved: rows that lack then are not made again
            self.save(self.round)
            progress.round_done(self.round)
        return Result()

    def save(self, done: int) -> None:
        """Checkpoint of the end of a round."""
        self.run.sync()
        with self.run.writing():
            self.run.checkpoint.save((done, 0), {**self.state_dict(), "states": self.states})

    def resume(self) -> int | None:
        """Load the last checkpoint if asked; the number of rounds that are done, ``None`` where all is to be done."""
        if not self.settings.resume:
            return None
        if not self.run.checkpoint.versions() and not any(row["round"] > 0 for row in self.run.rows()):
            self.run.rewind(-1)
            return None
        (done, _), state = self.checkpoint()
        self.load_state_dict(state)
        self.states = state.get("states", {})
        self.run.rewind(done)
        log(INFO, "resuming after round %d", done)
        return done

    def checkpoint(self) -> tuple[Version, Any]:
        """The last one, with its version; what a run has done is not thrown away where there is none."""
        found = self.run.checkpoint.newest()
        if found is None:
            raise UserError(
                f"resume: {self.run.path} has rounds, but no checkpoint of them can be read: it cannot go on; choose "
                "another run-name, and start anew"
            )
        return found

    def skip(self, error: RoundFailed, failed: int) -> None:
        """Take back what a failed round has changed here; ``RunFailed`` if it is one too many in a row."""
        most = self.settings.max_failed_rounds
        if failed >= most:
            raise RunFailed(f"{error}; failed rounds in a row: {failed}, max-failed-rounds is {most}") from error
        log(WARNING, "%s; the round is skipped", error)
        self.run.row(self.round, "train", "server", error=str(error))
        self.load_state_dict(self.checkpoint()[1])

    def evaluate_round(self) -> None:
        """Test every participant that the round has not tested yet, and the server."""
        if not self.settings.tests(self.round):
            return
        rest = [name for name in self.scenario.by_name if name not in self.evaluated and name not in self.failed]
        if rest:
            self.ask("evaluate", each=self.evaluate_content(rest), to=rest)
        self.run.row(self.round, "evaluate", "mean", metrics=self.means(self.evaluated))
        self.record_server()

    def record_server(self) -> None:
        metrics = self.evaluate_server()
        if metrics is not None:
            self.run.row(self.round, "evaluate", "server", metrics=metrics)

    def summary(self) -> None:
        """Log who takes part."""
        log(INFO, "\t├──> %s on scenario %s", self.method.title, self.scenario.name)
        log(INFO, "\t└──> participants: %s", ", ".join(self.scenario.by_name))

    def sample(self) -> list[str]:
        """The participants of this round, drawn by seed and round from all names, whoever is there."""
        picked: set[str] = set()
        for names, count in self.settings.pools(self.scenario):
            kind = [self.scenario.kind(names[0])] if self.settings.sample_by == "kind" else []
            order = torch.randperm(len(names), generator=generator(self.settings.seed, self.round, "sample", *kind))
            picked |= {names[i] for i in order[:count]}
        only = self.settings.train_only  # of those drawn: the draw is the same, whoever trains
        return [
            name
            for name, entry in self.scenario.by_name.items()
            if name in picked and (only is None or entry.modality in only.split("+"))
        ]

    # --------------------------------------------------------------------------------------- an exchange

    def ask(
        self,
        phase: str,
        shared: Content | None = None,
        each: Mapping[str, Content] | None = None,
        to: list[str] | None = None,
        least: int | None = None,
        into: Callable[[str, Reply], None] | None = None,
    ) -> dict[str, Reply]:
        """Send one phase to participants and return the good replies by name.

        Parameters
        ----------
        phase : str
            A phase of the method's client half, e.g. ``"train"``.
        shared : Content
            Records for all participants.
        each : Mapping[str, Content]
            Records for single participants.
        to : list[str] (default: this round's participants)
            Whom to ask.
        least : int (default: ``min-participants``, or all where fewer are asked)
            Good replies that a training phase needs.
        into : Callable[[str, Reply], None]
            Takes each good reply as it is read, in no order that means anything; what is returned is without records.
            So memory does not grow with the number of participants.

        Replies that are an error, off the contract, not finite, or late are recorded and left out. Raises
        ``RoundFailed`` if fewer than ``least`` of a training phase are good.
        """
        started = time.monotonic()
        self.step += 1
        asked = self.chosen if to is None else to
        there = [name for name in asked if name in self.nodes.of]
        messages, sent = self.messages(phase, there, shared or {}, each or {})
        replies: dict[str, Reply] = {}
        failures = {name: "no node hosts it now" for name in asked if name not in there}
        for served, message in self.post.exchange(messages):
            for name in served:
                try:
                    reply = self.open(phase, name, message)
                except wire.WireError as error:
                    failures[name] = str(error)
                    continue
                if into is not None:
                    into(name, reply)
                    reply = replace(reply, records={})
                replies[name] = reply
        replies = {name: replies[name] for name in asked if name in replies}  # not in the order of arrival
        self.record(phase, asked, replies, failures, sent, time.monotonic() - started)
        least = min(self.settings.min_participants, len(asked)) if least is None else least
        if phase != "evaluate":
            self.need(least, len(replies), phase, failures)
        return replies

    def need(self, least: int, good: int, phase: str, failures: Mapping[str, str]) -> None:
        """``RoundFailed`` with the reason of each failure if fewer than ``least`` replies are good."""
        if good < least:
            why = "; ".join(f"{name}: {failures[name]}" for name in self.scenario.by_name if name in failures)
            raise RoundFailed(
                f"round {self.round}, {phase}: {good} good replies, min-participants is "
                f"{self.settings.min_participants} ({why})"
            )

    def config(self, participants: list[str]) -> ConfigRecord:
        """What every message tells."""
        return ConfigRecord(
            {
                "participants": participants,
                "server-round": self.round,
                "step": self.step,
                "settings": self.settings.dump(),
                "scenario": self.scenario.dump(),
                "run-name": self.run.path.name,
                "run-folder": str(self.run.path),
                "run-id": self.run.id,
            }
        )

    def messages(
        self, phase: str, asked: list[str], shared: Content, each: Mapping[str, Content]
    ) -> tuple[dict[tuple[str, ...], Message], dict[str, int]]:
        """Messages by the participants that they serve, of one node each, and the bytes that each participant gets."""
        kind = "evaluate" if phase == "evaluate" else "train"
        message_type = kind if phase == kind else f"{kind}.{phase}"
        packed: dict[int, ArrayRecord] = {}  # what several participants get is packed once

        def pack(content: Content) -> dict[str, ArrayRecord]:
            for tensors in content.values():
                if id(tensors) not in packed:
                    packed[id(tensors)] = wire.pack(tensors)
            return {record: packed[id(tensors)] for record, tensors in content.items()}

        for_all = pack(shared)
        own = {name: pack(each.get(name, {})) for name in asked}
        sent = {name: wire.num_bytes([*for_all.values(), *own[name].values()]) for name in asked}
        messages = {}
        for names in self.together(asked):
            content = wire.prefixed(wire.ALL, {wire.CONFIG: self.config(names), **for_all})
            for name in names:
                content |= wire.prefixed(name, own[name])
            messages[tuple(names)] = Message(
                RecordDict(content),
                self.nodes.of[names[0]],
                message_type,
                ttl=self.post.ttl,
                group_id=str(self.round),
            )
        return messages, sent

    def together(self, asked: list[str]) -> Iterator[list[str]]:
        """Those of ``asked`` that one message serves: of one node, and not too many."""
        for node in sorted({self.nodes.of[name] for name in asked}):
            names = [name for name in asked if self.nodes.of[name] == node]
            yield from split(names, PER_MESSAGE)

    def open(self, phase: str, name: str, message: Message) -> Reply:
        """One participant's part of a node's reply; ``WireError`` if anything about it is wrong."""
        if message.has_error():
            gone = message.error.code in EXPIRED
            raise wire.WireError(self.late() if gone else short(message.error.reason))
        records = wire.records_of(message.content, name)
        if wire.ERROR in records:
            raise wire.WireError(short(str(dict(records[wire.ERROR]).get("error"))))
        if not records:
            raise wire.WireError("the reply holds nothing of this participant")
        world = (self.settings.dump(), self.scenario.dump(), self.settings.data_path)
        arrays = Contract(*world, name, self.classes[name]).up(phase, records)
        tensors = {record: wire.unpack(value) for record, value in arrays.items()}
        for record, content in tensors.items():
            if bad := wire.non_finite(content):
                raise wire.WireError(f"'{record}/{bad}' holds NaN or infinity")
        metrics = dict(records[wire.METRICS])
        began = (int(metrics.pop(wire.STATE_ROUND, 0)), int(metrics.pop(wire.STATE_STEP, 0)))
        if not 0 < metrics["num-examples"] <= self.examples[name]:  # it is a weight: no one has none, or more than all
            raise wire.WireError(f"num-examples is {metrics['num-examples']}, it has {self.examples[name]}")
        test = dict(records[wire.EVALUATE]) if wire.EVALUATE in records else None
        reply = Reply(
            tensors,
            num_examples=int(metrics.pop("num-examples")),
            seconds=metrics.pop("seconds"),
            began_from=began if wire.STATE_ROUND in records[wire.METRICS] else None,
            keeps=bool(metrics.pop(wire.STATE_KEPT, False)),
            metrics=metrics,
            bytes_up=wire.num_bytes(arrays.values()),
            num_tested=int(test.pop("num-examples")) if test else 0,
            test_seconds=test.pop("seconds") if test else 0.0,
            test=test,
        )
        self.check(name, reply)
        return reply

    def record(
        self,
        phase: str,
        asked: list[str],
        replies: dict[str, Reply],
        failures: dict[str, str],
        sent: dict[str, int],
        seconds: float,
    ) -> None:
        """Rows of a phase, in the order of the scenario; ``failures`` gets those that did not answer."""
        for name in asked:
            reply = replies.get(name)
            if reply is None:
                self.leave_out(phase, name, failures.setdefault(name, self.late()))
                continue
            self.compare_states(phase, name, reply)
            values: dict[str, Any] = {"bytes_up": reply.bytes_up, "bytes_down": sent[name]}
            if phase != "evaluate":
                values |= {"metrics": reply.metrics, "num_examples": reply.num_examples}
                self.run.row(self.round, phase, name, **values, seconds=round(reply.seconds, 3))
                values = {}
            if reply.test is not None:
                values |= {"metrics": reply.test, "num_examples": reply.num_tested}
                self.run.row(self.round, "evaluate", name, **values, seconds=round(reply.test_seconds, 3))
                self.evaluated[name] = reply.test
        if phase != "evaluate":
            metrics = self.means({name: reply.metrics for name, reply in replies.items()})
            self.run.row(self.round, phase, "mean", metrics=metrics, seconds=round(seconds, 3))

    def late(self) -> str:
        return f"no reply within {self.settings.round_timeout:g} s"

    def compare_states(self, phase: str, name: str, reply: Reply) -> None:
        """Say so if a participant did not begin from the personal state that it should have: it has lost that."""
        had, began = self.states.get(name, (0, 0)), reply.began_from
        if began is not None and not had <= began < (self.round, self.step):
            found = f"that of round {began[0]}" if began > (0, 0) else "a new model"
            told = f"its personal state before round {self.round} is gone; it went on from {found}"
            log(WARNING, "round %d, %s: %s: %s", self.round, phase, name, told)
            self.run.row(self.round, phase, name, note=told)
        if reply.keeps:
            self.states[name] = (self.round, self.step)
        elif began is not None:
            self.states[name] = began

    def leave_out(self, phase: str, name: str, reason: str) -> None:
        """Go on without a participant until the next round."""
        log(WARNING, "round %d, %s: %s left out: %s", self.round, phase, name, reason)
        self.run.row(self.round, phase, name, error=reason)
        self.failed.add(name)

    def means(self, metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Plain means over the participants of a kind, as ``<kind>/<metric>``."""
        found: dict[str, list[float]] = {}
        for name, values in metrics.items():
            for metric, value in values.items():
                found.setdefault(f"{self.scenario.kind(name)}/{metric}", []).append(value)
        return {key: sum(values) / len(values) for key, values in found.items()}

    # ------------------------------------------------------- Flower's own verbs, for code that calls them

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of a ``train`` phase in which nothing is shared."""
        self.post.grid, self.round = grid, server_round
        return self.messages("train", self.chosen, {}, {})[0].values()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Nothing is aggregated by default."""
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of an ``evaluate`` phase."""
        self.post.grid, self.round = grid, server_round
        return self.messages("evaluate", list(self.nodes.of), {}, {})[0].values()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Metrics go to the run folder, participant by participant."""
        return None
