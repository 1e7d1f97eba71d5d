"""Every method in a federation of seconds, for tests of what goes wrong in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Error, Message

from fedapps.methods import METHODS
from tests.alike import alike
from tests.end_to_end.test_golden import scenario_of

NODES = 8  # as many as any of these federations has participants: each is on a node of its own
OPTIONS: dict[str, dict[str, Any]] = {  # what puts more on the wire, or keeps more, than the defaults do
    "fedafd": {"fedafd.order": "separate", "fedafd.gff-persist": True},
    "fedcola": {"fedcola.aux-send": "changes"},
    "fedmrl": {"fedmrl.variant": "mrl-e"},
    "fedmuscle": {"fedmuscle.sync": "batch", "fedmuscle.batch-size": 32, "fedmuscle.learn-tau": True},
}
VARIANTS = [*METHODS, *(f"{algo} otherwise" for algo in OPTIONS)]


def config_of(variant: str, folder: Path, **options: Any) -> dict[str, Any]:
    """A run-config of three rounds, into ``folder``; in CoFED's and SAGE's some participants have the same labels."""
    algo, _, otherwise = variant.partition(" ")
    options = {"algo": algo, "num-server-rounds": 3, **(OPTIONS[algo] if otherwise else {}), **options}
    if algo in ("cofed", "sage"):
        return alike(folder, **options)
    return {"scenario": scenario_of(algo), "results-dir": str(folder), "run-name": "r", "seed": 1, **options}


def phases_of(variant: str) -> list[str]:
    """The training phases of a round, in their order."""
    phases = [phase for phase in METHODS[variant.partition(" ")[0]].wire if phase != "evaluate"]
    return [phase for phase in phases if phase != "align"] if variant == "fedmuscle" else phases


def phase_of(message: Message) -> tuple[int, str]:
    """Round and phase of a message."""
    return int(message.metadata.group_id), message.metadata.message_type.rpartition(".")[2]


def lost(message: Message) -> Message:
    """What Flower gives in the place of a reply that does not come."""
    reply = Message(Error(0, "lost"), reply_to=message)
    reply.metadata.__dict__["_message_id"] = "e"
    return reply
