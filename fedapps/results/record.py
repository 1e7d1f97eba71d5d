"""A run folder read back: what summaries, plots and exports are made from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedapps.errors import UserError
from fedapps.results.folder import Row, read_about, read_rows, what_is_wrong
from fedapps.scenario import Scenario
from fedapps.tasks import TASKS

SERVER, MEAN = "server", "mean"


@dataclass(frozen=True)
class Record:
    """``run.json`` and ``metrics.jsonl`` of one run."""

    path: Path
    about: dict[str, Any]
    scenario: Scenario
    rows: list[Row]

    @property
    def algo(self) -> str:
        return str(self.about["algo"])

    @cached_property
    def primary(self) -> dict[str, str]:
        """The metric that counts, of each kind of participant and of the server: its task's."""
        found = {entry.name: TASKS[entry.task.name].primary for entry in self.scenario.participants}
        if self.scenario.server is not None:
            found[SERVER] = TASKS[self.scenario.server.task.name].primary
        return found

    @cached_property
    def members(self) -> dict[str, list[str]]:
        """Participants of each kind; the server is a kind of its own, where it has a task."""
        found = {entry.name: self.scenario.names(entry) for entry in self.scenario.participants}
        return found | ({SERVER: [SERVER]} if self.scenario.server is not None else {})

    @cached_property
    def rounds(self) -> list[int]:
        """Rounds that are done, tested or not; the warm-up (round 0) left out."""
        return sorted({row["round"] for row in self.rows if row["phase"] in ("evaluate", "round") and row["round"] > 0})

    def evaluations(self, party: str) -> dict[int, Row]:
        """The test metrics of a participant or the server by round."""
        mine = (row for row in self.rows if row["phase"] == "evaluate" and row["participant"] == party)
        return {row["round"]: row for row in mine if "metrics" in row}

    def curve(self, party: str, metric: str) -> dict[int, float]:
        """One metric of a participant or the server by round."""
        return {r: row["metrics"][metric] for r, row in self.evaluations(party).items() if metric in row["metrics"]}

    def kind_curve(self, kind: str) -> dict[int, float]:
        """The plain mean of a kind's primary metric by round, over the participants evaluated in it."""
        values: dict[int, list[float]] = {}
        for name in self.members[kind]:
            for server_round, value in self.curve(name, self.primary[kind]).items():
                values.setdefault(server_round, []).append(value)
        return {r: sum(found) / len(found) for r, found in sorted(values.items())}

    def bytes_by_round(self, key: str) -> dict[int, int]:
        """``bytes_up`` or ``bytes_down`` of each round, over all participants and phases."""
        found = dict.fromkeys(self.rounds, 0)
        for row in self.rows:
            if key in row:
                found[row["round"]] = found.get(row["round"], 0) + row[key]
        return dict(sorted(found.items()))


def read_record(path: Path) -> Record:
    """Read a run folder; UserError if it is none or is damaged."""
    path = Path(path).expanduser().absolute()
    about = read_about(path)
    try:
        scenario = Scenario.parse(json.dumps(about["scenario"]))
    except ValidationError as error:
        raise UserError(f"{path} cannot be read as a run folder: scenario: {what_is_wrong(error)}") from error
    return Record(path, about, scenario, read_rows(path / "metrics.jsonl"))
