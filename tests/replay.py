"""A run whose participants answer what they answered before, changed at will: the server's work alone."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict

from fedapps import wire
from fedapps.client_app import app
from fedapps.holdings import Holdings
from fedapps.methods import method
from fedapps.results.folder import RunFolder
from fedapps.settings import read
from simulations.in_process import InProcessGrid, run
from strategies.base import Strategy
from tests.faults import phase_of

NODES = 2
Records = dict[str, Any]
When = tuple[int, str]
"""Round and phase."""
Change = Callable[[Records], Records | None]
"""A participant's records, without its name before them, to what is sent instead; None: its node fails."""


@dataclass(frozen=True)
class Recorded:
    """What each participant answered in each phase of a run."""

    config: dict[str, Any]
    names: list[str]
    replies: dict[tuple[int, str, int, str], Records]  # round, phase, step, participant

    def has(self, when: When) -> dict[str, Records]:
        """Participant -> what it answered in a phase (in the last one, where there are several of that name)."""
        return {name: records for (*about, _, name), records in self.replies.items() if tuple(about) == when}

    def mates(self, number: int) -> list[str]:
        """The participants on the node of the one of this number."""
        return self.names[number % NODES :: NODES]


def record(config: dict[str, Any]) -> Recorded:
    """Run once, and keep all replies."""
    replies: dict[tuple[int, str, int, str], Records] = {}

    def keep(message: Message, reply: Message) -> Message:
        if message.metadata.message_type != "query.hello":
            for name in {key.partition("/")[0] for key in reply.content}:
                replies[*phase_of(message), _step(message), name] = wire.records_of(reply.content, name)
        return reply

    run(config, NODES, tamper=keep)
    return Recorded(config, list(read(config)[1].by_name), replies)


@dataclass(frozen=True)
class Outcome:
    """What a replayed run has come to."""

    state: bytes  # the server's, at the end
    sent: dict[tuple[int, str, int, str], bytes]  # what each participant was sent
    rows: list[dict[str, Any]]
    strategy: Strategy

    @property
    def errors(self) -> dict[tuple[int, str], str]:
        """(round, participant) -> why it was left out."""
        return {(row["round"], row["participant"]): row["error"] for row in self.rows if "error" in row}

    def others(self, name: str) -> tuple[dict[Any, bytes], list[dict[str, Any]]]:
        """What all but ``name`` were sent and have answered."""
        rows = [row for row in self.rows if row["participant"] not in (name, "mean")]
        return {key: sent for key, sent in self.sent.items() if key[-1] != name}, rows


def replay(
    recorded: Recorded,
    changes: Mapping[When, Mapping[str, Change]],
    noise: int | None = None,
    **options: Any,
) -> Outcome:
    """Run the server on recorded replies, changed by phase and participant.

    With ``noise``, a seed, replies come in another order and twice, and nodes speak of participants of other nodes too.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings, scenario = read({**recorded.config, "results-dir": folder, **options})
        grid = Replay(recorded, changes, noise)
        run_folder = RunFolder(settings, scenario)
        holdings = Holdings(scenario, settings.seed, settings.data_path)
        strategy: Strategy = method(settings.algo).load_strategy()(settings, scenario, holdings, run_folder)
        strategy.start(grid)
        rows = [json.loads(line) for line in (run_folder.path / "metrics.jsonl").read_text().splitlines()]
        (*_, newest) = sorted((run_folder.path / "checkpoint").iterdir())
        state = newest.read_bytes()
        run_folder.end()
    for row in rows:
        row.pop("seconds", None)
    return Outcome(state, grid.sent, rows, strategy)


class Replay(InProcessGrid):
    """Two nodes that answer what was recorded."""

    def __init__(self, recorded: Recorded, changes: Mapping[When, Mapping[str, Change]], noise: int | None) -> None:
        self.recorded, self.changes = recorded, changes
        self.rng = None if noise is None else random.Random(noise)
        configs: list[dict[str, Any]] = [{"partition-id": i, "num-partitions": NODES} for i in range(NODES)]
        if self.rng:
            self.rng.shuffle(configs)  # messages go in the order of node ids
        super().__init__(self.answer, NODES, configs)  # type: ignore[arg-type]
        self.sent: dict[tuple[int, str, int, str], bytes] = {}

    def answer(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type == "query.hello":
            return app(message, context)
        when, step = phase_of(message), _step(message)
        changes, content = (
            self.changes.get(when, {}),
            self.meddling(when, step, int(context.node_config["partition-id"])),
        )
        names: Any = message.content.config_records[f"{wire.ALL}/{wire.CONFIG}"]["participants"]
        self.sent |= {(*when, step, name): _bytes_for(message, name) for name in names}
        for name in names:
            records = dict(self.recorded.replies.get((*when, step, name), {}))
            changed = changes[name](records) if name in changes else records
            if changed is None:
                return Message(Error(0, "lost"), reply_to=message)
            content |= {key if "/" in key else f"{name}/{key}": value for key, value in changed.items()}
        return Message(RecordDict(content), reply_to=message)

    def meddling(self, when: When, step: int, node: int) -> Records:
        """What a node says of those that it does not host: what they would have said."""
        others = set(self.recorded.names) - set(self.recorded.mates(node)) if self.rng else set()
        replies = {name: self.recorded.replies.get((*when, step, name), {}) for name in sorted(others)}
        return {f"{name}/{key}": value for name, records in replies.items() for key, value in records.items()}

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(super().pull_messages(message_ids))
        return self.rng.sample(found * 2, 2 * len(found)) if self.rng else found


def _step(message: Message) -> int:
    return int(message.content.config_records[f"{wire.ALL}/{wire.CONFIG}"]["step"])  # type: ignore[arg-type]


def _bytes_for(message: Message, name: str) -> bytes:
    """The bytes of all arrays that a participant is sent."""
    records = {**wire.records_of(message.content, wire.ALL), **wire.records_of(message.content, name)}
    arrays = [(key, value) for key, value in sorted(records.items()) if isinstance(value, ArrayRecord)]
    return b"".join(key.encode() + array.data for key, value in arrays for array in value.values())
