"""Messages and participants made by hand, for tests of one side alone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from torch.profiler import ProfilerActivity, profile

from fedapps import wire
from fedapps.participant import Participant
from fedapps.settings import read


class Clock:
    """Time that passes only while somebody sleeps: training takes none of it, however busy the machine is."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def message(kind: str, records: dict[str, Any], node: int = 100) -> Message:
    """A message as a node gets it."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    made = Message(RecordDict(records), node, kind)
    made.metadata.__dict__["_message_id"] = "m"
    return made


def config(folder: Path, server_round: int = 1, step: int = 1, **run_config: Any) -> ConfigRecord:
    """The config record that the server sends with every message."""
    settings, scenario = read({"scenario": "emoji-tiny", **run_config})
    return ConfigRecord(
        {
            "participants": [],
            "server-round": server_round,
            "step": step,
            "settings": settings.dump(),
            "scenario": scenario.dump(),
            "run-name": "r",
            "run-folder": str(folder),
            "run-id": "id",
        }
    )


def context(**node_config: Any) -> Context:
    return Context(1, 100, node_config or {"partition-id": 0, "num-partitions": 1}, RecordDict(), {})


def scores(content: RecordDict) -> dict[str, Any]:
    """What a reply says of the test, but for the time that it took."""
    return {name: value for name, value in content.metric_records["evaluate"].items() if name != "seconds"}


def participant(name: str, folder: Path, records: dict[str, Any] | None = None, **options: Any) -> Participant:
    """A participant of the tiny scenario with some packed records."""
    packed = {record: wire.pack(tensors) for record, tensors in (records or {}).items()}
    about = ConfigRecord({**config(folder, **options), "participant": name})
    return Participant(message("train", {wire.CONFIG: about, **packed}), context())


def peak_memory(work: Callable[[], Any]) -> int:
    """Most bytes that torch held at once for what ``work`` made.

    Torch's own record of its allocations: a process's resident memory also grows by libraries loaded on first use.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        record.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]")
    return max(accumulate(change for _, change in changes))
