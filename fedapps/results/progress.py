"""One line a round: where the run stands and how long it will take."""

from __future__ import annotations

import time
from logging import INFO
from typing import Any

from flwr.common.logger import log

from fedapps.results.folder import RunFolder
from fedapps.scenario import Scenario
from fedapps.tasks import TASKS


class Progress:
    """A row of seconds before a round is saved, and a line of the log after it, which ``fedapps run`` turns into a bar
    on a terminal."""

    def __init__(self, run: RunFolder, scenario: Scenario, num_rounds: int, first: int) -> None:
        self.run = run
        self.scenario = scenario
        self.num_rounds = num_rounds
        self.first = first
        self.started = self.last = time.monotonic()

    def record(self, server_round: int) -> None:
        """Record the seconds since the round before (first: since the start), as the last row of a round."""
        now = time.monotonic()
        self.run.row(server_round, "round", "server", seconds=round(now - self.last, 3))
        self.last = now

    def round_done(self, server_round: int) -> None:
        """Log the line of a round that is saved."""
        spent = self.last - self.started
        left = spent / (server_round - self.first + 1) * (self.num_rounds - server_round)
        rows = [row for row in self.run.newest if row["phase"] == "evaluate"]
        shown = " · ".join(self._figures(rows)) or "no test"
        log(INFO, "[round %d/%d] %s · %.0f s, %.0f s to go", server_round, self.num_rounds, shown, spent, left)

    def _figures(self, rows: list[dict[str, Any]]) -> list[str]:
        by_party = {row["participant"]: row.get("metrics", {}) for row in rows}
        mean, server = by_party.get("mean", {}), by_party.get("server", {})
        figures = []
        for entry in self.scenario.participants:
            metric = TASKS[entry.task.name].primary
            if f"{entry.name}/{metric}" in mean:
                figures.append(f"{entry.name} {metric} {mean[f'{entry.name}/{metric}']:.2f}")
        if self.scenario.server is not None:
            metric = TASKS[self.scenario.server.task.name].primary
            if metric in server:
                figures.append(f"server {metric} {server[metric]:.2f}")
        return figures
