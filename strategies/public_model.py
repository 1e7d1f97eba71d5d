"""The server's own model: trained on public data, the source of public representations, tested on held-out data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedapps import wire
from fedapps.errors import UserError
from fedapps.holdings import Holdings, num_classes
from fedapps.learner import (
    build_learner,
    build_optimizer,
    forward,
    plain,
    representations,
    score,
    set_rate,
    step,
    task_loss,
    view,
)
from fedapps.participant import pick_device
from fedapps.results.folder import RunFolder
from fedapps.scenario import Modality, Scenario
from fedapps.seeds import batches, generator, seed_of
from fedapps.settings import Settings
from fedapps.state import leaves

Losses = Callable[[Tensor, Any], dict[str, Tensor]]
"""(public rows, the model's output on them) -> scalars by name, whose sum is the objective."""


class PublicModel:
    """Model, task and optimiser of the server, with the public data that they are trained on."""

    def __init__(self, settings: Settings, scenario: Scenario, holdings: Holdings, run: RunFolder) -> None:
        assert scenario.server is not None and scenario.public is not None
        self.settings = settings
        self.run = run
        self.spec = scenario.server
        device = pick_device(settings.device)
        torch.set_num_threads(scenario.threads)
        self.model, self.task = build_learner(
            self.spec, scenario.dim, num_classes(holdings.server_test, self.spec.test), settings.seed, "server"
        )
        self.model.to(device)
        self.task.to(device)
        self.optimizer = build_optimizer(self.spec.train, [*self.model.parameters(), *self.task.parameters()])
        self.public = view(holdings.public, self.spec, scenario.public, device)
        self.test = view(holdings.server_test, self.spec, self.spec.test, device)

    def parts(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {"model": self.model, "task": self.task, "optimizer": self.optimizer}

    def task_loss(self, rows: Tensor, output: Any) -> dict[str, Tensor]:
        """The loss of the server's own task on public rows."""
        loss = task_loss(self.spec, self.model, self.task, self.public, rows, output)
        return {"task_loss": loss}

    def fit(self, server_round: int, epochs: int, losses: Losses | None = None, name: str = "fit") -> None:
        """Epochs over the public data on ``losses`` (default: the task's); ``name`` is the phase in the records."""
        started = time.monotonic()
        losses = losses or self.task_loss
        sums: dict[str, float] = {}
        steps = 0
        names = (self.settings.seed, server_round, "public", name)
        rng = generator(*names)
        torch.manual_seed(seed_of(*names))
        set_rate(self.optimizer, self.spec.train, server_round, self.settings.num_server_rounds)
        self.model.train()
        for _ in range(epochs):
            for rows in batches(len(self.public), self.spec.train.batch_size, rng):
                output = forward(self.spec, self.model, self.public, rows, plain(self.model))
                parts = losses(rows, output)
                step(torch.stack(list(parts.values())).sum(), [self.optimizer], self.spec.train.clip)
                sums = {key: sums.get(key, 0.0) + value.item() for key, value in parts.items()}
                steps += 1
        mean = {key: value / steps for key, value in sums.items()}
        self.run.row(server_round, name, "server", metrics=mean, seconds=round(time.monotonic() - started, 3))
        self.check_finite(mean)

    def check_finite(self, losses: dict[str, float]) -> None:
        """``UserError`` where training has diverged: its checkpoint is not written, and nobody is sent the model."""
        broken = next((f"{key} is {value}" for key, value in losses.items() if not math.isfinite(value)), None)
        state = {key: part.state_dict() for key, part in self.parts().items()}
        if tensor := wire.non_finite(dict(leaves(state))):
            broken = broken or f"'{tensor}' holds NaN or infinity"
        if broken:
            raise UserError(f"the server's training diverged: {broken}; take a smaller learning rate for it")

    def encode_public(self) -> dict[str, Tensor]:
        """Representations of all public samples [P, d] by modality, in eval mode."""
        return {m: representations(self.model, self.public, m, plain(self.model)) for m in self.spec.modalities}

    def evaluate(self) -> dict[str, float]:
        """Test metrics of the server's task on held-out data."""
        return score(self.spec, self.model, self.task, self.test)

    def encoders(self, modalities: tuple[Modality, ...]) -> dict[str, Tensor]:
        """The state dict of the encoders of some modalities, as participants load it."""
        state = self.model.encoders.state_dict()
        return {name: tensor for name, tensor in state.items() if name.partition(".")[0] in modalities}
