"""The run folder: ``run.json``, ``metrics.jsonl``, ``checkpoint/``; written so that nothing is lost."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedapps.errors import UserError
from fedapps.scenario import Scenario
from fedapps.settings import AUTO, Settings
from fedapps.state import Store


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def default_run_name(settings: Settings) -> str:
    """``algo-scenario-seed-time``."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return f"{settings.algo}-{Path(settings.scenario).stem}-{settings.seed}-{stamp}"


def run_path(settings: Settings) -> Path:
    """The folder of a run, absolute; a run-name of ``auto`` gets one with the time in it."""
    root = Path("~/.fedapps/runs") if settings.results_dir == AUTO else Path(settings.results_dir)
    name = default_run_name(settings) if settings.run_name == AUTO else settings.run_name
    return root.expanduser().absolute() / name


def check_run_folder(settings: Settings, scenario: Scenario) -> None:
    """Refuse a run folder that exists already, or one to resume that does not or that is of another run."""
    path = run_path(settings)
    if settings.resume:
        if settings.run_name == AUTO:
            raise UserError("resume: say which run to continue with run-name=<name>")
        if not (path / "run.json").is_file():
            raise UserError(f"resume: there is no run folder {path}")
        _check_same_run(json.loads((path / "run.json").read_text(encoding="utf-8")), settings, scenario)
    elif path.exists():
        raise UserError(
            f"run-name: {path} exists already; choose another run-name, or resume=true to continue that run"
        )


def _check_same_run(about: Mapping[str, Any], settings: Settings, scenario: Scenario) -> None:
    """A run is continued with the settings that it was started with; only more rounds may be asked."""
    free = {"resume", "num-server-rounds", "results-dir", "run-name", "round-timeout", "min-participants", "device"}
    old, new = about["settings"], settings.flat()
    for key in old.keys() | new.keys():
        if key not in free and old.get(key) != new.get(key):
            raise UserError(
                f"resume: {key} was {old.get(key)!r} in that run and is {new.get(key)!r} now; leave it as it was"
            )
    if about["scenario"] != json.loads(scenario.dump()):
        raise UserError(f"resume: the scenario {scenario.name} has changed since that run")


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(part, path)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``; a last line that was cut off by a crash is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            rows.append(json.loads(line))
    return rows


class RunFolder:
    """The folder of one run, opened for writing.

    Raises ``UserError`` if the folder exists (unless resuming) or cannot be written.
    """

    def __init__(self, settings: Settings, scenario: Scenario) -> None:
        check_run_folder(settings, scenario)
        self.path = run_path(settings)
        self.checkpoint = Store(self.path / "checkpoint")
        self._metrics = self.path / "metrics.jsonl"
        about = {
            "status": "running",
            "reason": None,
            "algo": settings.algo,
            "seed": settings.seed,
            "started": now(),
            "ended": None,
            "settings": settings.flat(),
            "scenario": json.loads(scenario.dump()),
            "versions": {
                name: version(name) for name in ("fedapps", "flwr", "torch", "torchvision", "transformers", "numpy")
            },
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        }
        try:
            if settings.resume:
                self.about = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
                self.about |= {"settings": settings.flat(), "status": "running", "reason": None}
                self.about |= {"ended": None, "resumed": now()}
            else:
                self.path.mkdir(parents=True)
                self.about = about
                self._metrics.touch()
            write_json(self.path / "run.json", self.about)
        except OSError as error:
            raise UserError(f"results-dir: {self.path} cannot be written: {error.strerror}") from error

    def rewind(self, server_round: int) -> None:
        """Drop the rows of rounds after ``server_round``: they are about to be made again."""
        rows = [row for row in read_rows(self._metrics) if row["round"] <= server_round]
        part = self._metrics.with_suffix(".part")
        part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        os.replace(part, self._metrics)

    def row(self, server_round: int, phase: str, participant: str, **values: Any) -> None:
        """Append one event to ``metrics.jsonl``."""
        line = json.dumps({"round": server_round, "phase": phase, "participant": participant, **values})
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def rows(self) -> list[dict[str, Any]]:
        return read_rows(self._metrics)

    def end(self, reason: str | None = None) -> None:
        """Mark the run as finished, or as failed for a reason."""
        self.about |= {"status": "failed" if reason else "finished", "reason": reason, "ended": now()}
        write_json(self.path / "run.json", self.about)
