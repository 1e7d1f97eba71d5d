"""Local: the same loop without exchange. What every federated method has to beat.

Participants train alone; the server, if the scenario gives it a task, trains on public data alone.
"""

from __future__ import annotations

from typing import Any

from strategies.base import Strategy
from strategies.public_model import PublicModel


class Local(Strategy):
    """Every party alone, with the epochs and learning rates that federated methods get."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.server = (
            PublicModel(self.settings, self.scenario, self.holdings, self.run) if self.scenario.server else None
        )

    def parts(self) -> dict[str, Any]:
        return self.server.parts() if self.server else {}

    def prepare(self) -> None:
        if self.server:
            self.server.fit(0, self.server.spec.warmup_epochs, name="warm-up")

    def train_round(self, server_round: int) -> None:
        self.ask("train")
        if self.server:
            self.server.fit(server_round, self.server.spec.epochs)

    def evaluate_server(self) -> dict[str, float] | None:
        return self.server.evaluate() if self.server else None
