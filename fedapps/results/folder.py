"""The run folder: ``run.json``, ``metrics.jsonl``, ``checkpoint/``; written so that nothing is lost."""

from __future__ import annotations

import json
import math
import os
import platform
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fedapps.code_hash import code_hash
from fedapps.errors import UserError
from fedapps.files import lock, put_text, try_folder, writing
from fedapps.scenario import Scenario, reason
from fedapps.settings import AUTO, Settings
from fedapps.state import Store

Row = dict[str, Any]
"""One line of ``metrics.jsonl``."""

UNBEGUN = {".lock", "metrics.jsonl", "run.part"}
"""What may be in a run folder before there is a ``run.json``."""


def _time(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("needs a time zone")
    return text


Time = Annotated[str, AfterValidator(_time)]


class _About(BaseModel):
    """What ``run.json`` must hold to be read."""

    model_config = ConfigDict(strict=True)
    status: str
    algo: str
    seed: int
    started: Time
    ended: Time | None
    resumed: Time | None = None
    settings: dict[str, Any]
    scenario: dict[str, Any]
    versions: dict[str, str]
    code_hash: str | None = Field(None, alias="code-hash")  # None: of several versions, or from before there was one


class _Row(BaseModel):
    """What a line of ``metrics.jsonl`` may hold; ``None`` was not a finite number."""

    model_config = ConfigDict(strict=True)
    round: int
    phase: str
    participant: str
    metrics: dict[str, float | None] = {}
    num_examples: float | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None
    seconds: float | None = None
    error: str | None = None
    note: str | None = None


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


def resuming(path: Path) -> str:
    """The words that continue the run in a folder."""
    return f"resume=true run-name={path.name} results-dir={path.parent}"


def at_work(path: Path) -> bool:
    """Whether a process is at work in a run folder."""
    try:
        lock("results-dir", path, "taken").close()
    except UserError as error:
        return isinstance(error.__cause__, BlockingIOError)
    return False


def check_run_folder(settings: Settings, scenario: Scenario) -> None:
    """Refuse a run folder that exists already or cannot be written, or one to resume that does not exist or that
    is of another run."""
    path, hint = run_path(settings), "; name another with results-dir=<folder>"
    if settings.resume:
        if settings.run_name == AUTO:
            raise UserError("resume: say which run to continue with run-name=<name>")
        if not os.path.isfile(path / "run.json"):
            begun = f"nothing was begun in {path}; start it without resume" if os.path.isdir(path) else ""
            raise UserError(f"resume: {begun or f'there is no run folder {path}'}")
        _check_same_run(read_about(path), settings, scenario)
        lock("results-dir", path, f"resume: {path}: this run is still going on").close()
        with writing("results-dir", path):
            try_folder(path)
        return
    with writing("results-dir", path, hint):
        _check_unused(path)
        try_folder(path)


def _check_unused(path: Path) -> None:
    """Refuse what exists, but for a folder with no more in it than a run leaves that was killed before it had begun."""
    if not os.path.lexists(path):
        return
    left = set(os.listdir(path)) if os.path.isdir(path) else {""}
    if left - UNBEGUN or ("metrics.jsonl" in left and os.path.getsize(path / "metrics.jsonl")):
        run = ", or resume=true to continue that run" if "run.json" in left else ""
        raise UserError(f"run-name: {path} exists already; choose another run-name{run}")


def _check_same_run(about: Mapping[str, Any], settings: Settings, scenario: Scenario) -> None:
    """A run is continued with the settings that it was started with; only more rounds may be asked."""
    free = {"resume", "num-server-rounds", "results-dir", "run-name", "round-timeout", "min-participants", "device"}
    free |= {"max-failed-rounds"}
    parties = [*scenario.participants, *([scenario.server] if scenario.server else [])]
    if settings.params.hangs_on_rounds or any(party.train.schedule == "cosine" for party in parties):
        free.remove("num-server-rounds")
    old, new = about["settings"], settings.flat()
    for key in old.keys() | new.keys():
        if key not in free and old.get(key) != new.get(key):
            raise UserError(
                f"resume: {key} was {old.get(key)!r} in that run and is {new.get(key)!r} now; leave it as it was"
            )
    if about["scenario"] != json.loads(scenario.dump()):
        raise UserError(f"resume: the scenario {scenario.name} has changed since that run")


def dumps(values: Any, **options: Any) -> str:
    """Strict JSON: a number that is not finite becomes null."""
    return json.dumps(_finite(values), allow_nan=False, **options)


def _finite(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _finite(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_finite(value) for value in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    put_text(path, dumps(values, indent=2, ensure_ascii=False) + "\n")


def read_about(path: Path) -> dict[str, Any]:
    """``run.json`` of the run folder ``path``; UserError if there is none or it is damaged."""
    try:
        about = json.loads((path / "run.json").read_text(encoding="utf-8"))
        _About.model_validate(about)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{path} is not a run folder: it holds no run.json") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as a run folder: run.json: {what_is_wrong(error)}") from error
    return about


def read_rows(path: Path) -> list[Row]:
    """The rows of a ``metrics.jsonl``; values that are not finite numbers are left out, and so is a last line
    that was cut off by a crash. UserError if it is damaged otherwise."""
    return [_without_nulls(row) for row in _lines(path)]


def _without_nulls(row: Row) -> Row:
    row = {key: value for key, value in row.items() if value is not None}
    if "metrics" in row:
        row["metrics"] = {name: value for name, value in row["metrics"].items() if value is not None}
    return row


def _lines(path: Path) -> list[Row]:
    """The rows as they stand, values that are not finite as ``None``."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {what_is_wrong(error)}") from error
    return [_row(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.endswith("\n")]


def _row(line: str, where: str) -> Row:
    try:
        row = json.loads(line, parse_constant=lambda _: None)  # NaN, which older runs wrote
        _Row.model_validate(row)
    except ValueError as error:
        raise UserError(f"{where}: {what_is_wrong(error)}") from error
    return row


def what_is_wrong(error: Exception) -> str:
    """What made a file unreadable, in a few words."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return f"{where}: {reason(first, [])}" if where else "must be a mapping of keys to values"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"is not JSON: {str(error).splitlines()[0]}"


class RunFolder:
    """The folder of one run, opened for writing.

    Raises ``UserError`` if the folder exists (unless resuming) or cannot be written.
    """

    def __init__(self, settings: Settings, scenario: Scenario) -> None:
        check_run_folder(settings, scenario)
        self.path = run_path(settings)
        self.checkpoint = Store(self.path / "checkpoint")
        self.newest: list[Row] = []  # the rows of the round that is going on
        self._metrics = self.path / "metrics.jsonl"
        about = {
            "status": "running",
            "reason": None,
            "algo": settings.algo,
            "seed": settings.seed,
            "started": now(),
            "ended": None,
            "id": uuid.uuid4().hex,  # tells its personal states from those of another run of this name
            "settings": settings.flat(),
            "scenario": json.loads(scenario.dump()),
            "versions": {
                name: version(name) for name in ("fedapps", "flwr", "torch", "torchvision", "transformers", "numpy")
            },
            "code-hash": code_hash(),
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        }
        with writing("results-dir", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = lock("results-dir", self.path, f"run-name: {self.path}: another process writes there")
            if settings.resume:
                self.about = read_about(self.path)
                self.about |= {"settings": settings.flat(), "status": "running", "reason": None}
                self.about |= {"ended": None, "resumed": now()}
                if self.about.get("code-hash") != code_hash():
                    self.about["code-hash"] = None
            else:
                _check_unused(self.path)  # nor by another process since it was looked at
                self.about = about
                self._metrics.touch()
            self.id = str(self.about.get("id", ""))
            write_json(self.path / "run.json", self.about)

    def writing(self) -> AbstractContextManager[None]:
        """``UserError`` that says how to go on, where the disk is full or cannot be written any more."""
        return writing("results-dir", self.path, f"; mend that, and run again with {self.resuming}")

    @property
    def resuming(self) -> str:
        """The words that continue this run."""
        return resuming(self.path)

    def rewind(self, server_round: int) -> None:
        """Drop the rows of rounds after ``server_round``: they are about to be made again."""
        rows = [row for row in _lines(self._metrics) if row["round"] <= server_round]
        with self.writing():
            put_text(self._metrics, "".join(dumps(row) + "\n" for row in rows))

    def row(self, server_round: int, phase: str, participant: str, **values: Any) -> None:
        """Append one event to ``metrics.jsonl``."""
        line = dumps({"round": server_round, "phase": phase, "participant": participant, **values})
        with self.writing(), self._metrics.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        if self.newest and self.newest[-1]["round"] != server_round:
            self.newest = []
        self.newest.append(_without_nulls(json.loads(line)))

    def sync(self) -> None:
        """Have the rows on the disk, also after a power failure: those of a round that is saved are not made again."""
        with self.writing(), self._metrics.open("rb+") as file:
            os.fsync(file.fileno())

    def rows(self) -> list[Row]:
        return read_rows(self._metrics)

    def end(self, reason: str | None = None) -> None:
        """Mark the run as finished, or as failed for a reason."""
        self.about |= {"status": "failed" if reason else "finished", "reason": reason, "ended": now()}
        write_json(self.path / "run.json", self.about)
        self._lock.close()
