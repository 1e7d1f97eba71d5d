"""A participant as a client half sees it: what came, its model and data, its personal state, and the reply."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sized
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor

from fedapps import wire
from fedapps.errors import UserError
from fedapps.files import writing
from fedapps.holdings import Holdings, holdings
from fedapps.learner import View, build_learner, build_optimizer, build_shared, set_rate, trainable, view
from fedapps.models import Model
from fedapps.scenario import Scenario
from fedapps.seeds import batches, generator, seed_of
from fedapps.settings import RUN_NAME, Settings
from fedapps.state import Store, leaves


def pick_device(wish: str) -> torch.device:
    """``auto`` is a GPU where there is one."""
    return torch.device("cuda" if wish == "cuda" or (wish == "auto" and torch.cuda.is_available()) else "cpu")


def data_path(context: Context, settings: Settings) -> str | None:
    """The folder of this node's own data: its node config's, else the run-config's."""
    own = context.node_config.get("data-path")
    return settings.data_path if own is None else str(own)


def state_root(context: Context, config: ConfigRecord) -> Path:
    """Where this node keeps personal state: ``state-dir`` of its node config, else its home; in simulation the
    run folder."""
    node, run_name = context.node_config, str(config["run-name"])
    if not re.fullmatch(RUN_NAME, run_name):  # it comes from the server and becomes part of a path
        raise UserError(f"run-name: '{run_name}' is no name for a folder")
    if "state-dir" in node:
        return Path(str(node["state-dir"])) / run_name
    if "participant" in node:
        return Path(os.path.expanduser("~/.fedapps/state")) / run_name
    return Path(str(config["run-folder"])) / "state"


class Participant:
    """One participant in one phase of one round.

    Built from a message that holds this participant's records only; every random draw of the phase comes from
    ``self.rng`` or torch's global generator, both seeded by (seed, round, step, participant).
    """

    def __init__(self, message: Message, context: Context) -> None:
        self.message = message
        self.started = time.perf_counter()
        config = message.content.config_records[wire.CONFIG]
        self.name = str(config["participant"])
        self.round = int(config["server-round"])  # type: ignore[arg-type]
        self.step = int(config["step"])  # type: ignore[arg-type]
        self.settings = Settings.parse(str(config["settings"]))
        self.scenario = Scenario.parse(str(config["scenario"]))
        self.spec = self.scenario.by_name[self.name]
        self.device = pick_device(self.settings.device)
        self.data_path = data_path(context, self.settings)
        self.store = Store(state_root(context, config) / self.name, str(config["run-id"]))
        self.state: dict[str, int] = {}  # what a reply tells of the personal state
        draw = (self.settings.seed, self.round, self.step, self.name)
        self.rng = generator(*draw)
        self.model, self.task = build_learner(
            self.spec, self.scenario.dim, self.held.num_classes(self.name), self.settings.seed, self.name
        )
        self.model.to(self.device)
        self.task.to(self.device)
        self.optimizer = build_optimizer(self.spec.train, [*trainable(self.model), *self.task.parameters()])
        torch.manual_seed(seed_of(*draw))

    # ------------------------------------------------------------------------------------------ data

    @property
    def held(self) -> Holdings:
        config = self.message.content.config_records[wire.CONFIG]
        return holdings(str(config["scenario"]), self.settings.seed, self.data_path)

    @cached_property
    def train(self) -> View:
        """Private training samples."""
        return view(self.held.train(self.name), self.spec, self.spec.data, self.device)

    @cached_property
    def test(self) -> View:
        """Held-out samples."""
        return view(self.held.test(self.name), self.spec, self.spec.data, self.device)

    @cached_property
    def public(self) -> View:
        """Public samples without labels, in the order of all parties."""
        data = self.scenario.public
        assert data is not None
        return view(self.held.public, self.spec, data, self.device, labelled=False)

    @cached_property
    def class_mix(self) -> Tensor | None:
        """This participant's own share of each class [C], for single-label tasks."""
        if self.spec.task.name != "classification":
            return None
        num_classes = len(self.held.train(self.name).classes[self.spec.data.label or ""])
        return torch.bincount(self.train.target, minlength=num_classes) / len(self.train)

    def batches(self, samples: Sized | None = None) -> list[Tensor]:
        """Shuffled row numbers of one epoch."""
        return batches(len(samples if samples is not None else self.train), self.spec.train.batch_size, self.rng)

    # ------------------------------------------------------------------------------------------ what came

    def received(self, record: str) -> dict[str, Tensor]:
        """The tensors of a record of this message; empty where it did not come."""
        records = self.message.content.array_records
        return wire.unpack(records[record]) if record in records else {}

    def shared_model(self) -> Model:
        """The small model that participants share, as it came; where its head does not travel, with a new one."""
        params, classes = self.settings.params, self.held.num_classes(self.name)
        dim = params.shared_dim(self.scenario.dim)
        model = build_shared(self.scenario, self.spec.modalities[0], dim, classes, self.settings.seed)
        model.load_state_dict(self.received("shared"), strict=params.shares_head)
        return model.to(self.device)

    # ------------------------------------------------------------------------------------------ state

    def kept(self) -> dict[str, Any]:
        """What an earlier phase has kept, as ``save`` got it; empty if nothing has been kept yet."""
        (kept_round, kept_step), tree = self.store.before((self.round, self.step)) or ((0, 0), {})
        self.state |= {wire.STATE_ROUND: kept_round, wire.STATE_STEP: kept_step}
        return dict(tree)

    def save(self, tree: Mapping[str, Any]) -> None:
        """Keep a tree of tensors and plain values for the next phases."""
        with writing("state-dir", self.store.folder):
            self.store.save((self.round, self.step), dict(tree))
        self.state[wire.STATE_KEPT] = 1

    def restore(self, **parts: Any) -> bool:
        """Load what an earlier phase kept into modules and optimisers; new parts stay as they are.

        The learning rate is set to this round's afterwards. False if nothing has been kept yet.
        """
        kept = self.kept()
        for name, part in self._parts(parts).items():
            if name in kept:
                part.load_state_dict(kept[name])
        set_rate(self.optimizer, self.spec.train, self.round, self.settings.num_server_rounds)
        return bool(kept)

    def keep(self, **parts: Any) -> None:
        """Save the model, task, optimiser and ``parts`` as this participant's state of this phase."""
        tree = {name: part.state_dict() for name, part in self._parts(parts).items()}
        if broken := wire.non_finite(dict(leaves(tree))):
            raise UserError(f"training diverged: '{broken}' holds NaN or infinity; take a smaller learning rate")
        self.save(tree)

    def _parts(self, parts: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "task": self.task, "optimizer": self.optimizer, **parts}

    # ------------------------------------------------------------------------------------------ reply

    def reply(
        self,
        records: Mapping[str, Mapping[str, Tensor]] | None = None,
        metrics: Mapping[str, float] | None = None,
        evaluate: Callable[[], Mapping[str, float]] | None = None,
    ) -> Message:
        """Tensors by record, metrics of the phase, and test metrics if it ends with a test and the round has one."""
        content: dict[str, Any] = {name: wire.pack(tensors) for name, tensors in (records or {}).items()}
        seconds = time.perf_counter() - self.started
        content[wire.METRICS] = MetricRecord(
            {**_floats(metrics or {}), "num-examples": len(self.train), "seconds": seconds, **self.state}
        )
        if evaluate is not None and self.settings.tests(self.round):
            started = time.perf_counter()
            test: dict[str, Any] = {**_floats(evaluate()), "num-examples": len(self.test)}
            content[wire.EVALUATE] = MetricRecord({**test, "seconds": time.perf_counter() - started})
        return Message(RecordDict(content), reply_to=self.message)


def _floats(metrics: Mapping[str, float]) -> dict[str, float]:
    """Plain numbers; ``UserError`` where one is not finite, as training has diverged then."""
    found = {name: float(value) for name, value in metrics.items()}
    for name, value in found.items():
        if not math.isfinite(value):
            raise UserError(f"training diverged: {name} is {value}; take a smaller learning rate")
    return found
