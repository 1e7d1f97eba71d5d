"""``fedapps compare``: several methods over several seeds on one scenario, and one table of what came out.

A cell is one method with one seed. Each has a run folder and a process of its own, in which the unchanged ServerApp
and ClientApp run (``simulations.in_process``); as many cells run at once as the machine has CPUs for.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedapps import checks
from fedapps.cli import parse_words, run_config
from fedapps.errors import RunFailed, UserError
from fedapps.hints import nearest
from fedapps.holdings import Holdings
from fedapps.results.folder import check_run_folder, now, read_about, writing
from fedapps.results.plots import COLOURS, MARKERS, STYLE, STYLES
from fedapps.results.record import MEAN, SERVER, Record, read_record
from fedapps.results.summary import summarise
from fedapps.results.table import size
from fedapps.settings import read
from simulations.in_process import run

ALGO = re.compile(r"([^,\[\]]+)(?:\[([^\[\]]*)\])?")  # a method, and its own settings in brackets
COMMON = {"scenario", "num-server-rounds", "local-epochs", "data-path", "results-dir", "run-name"}
OWN_MIX = "accuracy_own_mix"
HATCHES = ["", "///", "...", "xxx", "\\\\\\", "---", "ooo"]

Figures = Mapping[str, float | None]
"""Column -> what one cell has in it; ``None`` where it has nothing."""


def compare(words: Sequence[str], out: Path | None = None) -> int:
    """Run every cell that is not finished, print the table and write ``compare.md``, ``.csv`` and ``.png``.

    Returns 0, or 1 if a cell failed, or 2 if something keeps a cell from starting: then none is started. Raises
    ``UserError`` for words that make no comparison, and for a folder with cells of other settings.
    """
    plan = read_plan(words)
    if found := problems(plan):
        for line in found:
            print(f"error: {line}", file=sys.stderr)
        return 2
    out = plan.folder if out is None else out.expanduser().absolute()
    for folder in (plan.folder, out):
        with writing("results-dir" if folder == plan.folder else "out", folder):
            folder.mkdir(parents=True, exist_ok=True)
    with alone(plan.folder) as lock:
        failed = run_cells(plan, lock)
    report = Report(plan, gather(plan, failed), failed)
    console = Console(width=None if sys.stdout.isatty() else 200)
    for table in report.tables():
        console.print(table)
    console.print("\n".join(report.notes()), markup=False, highlight=False)
    for file in write(report, shlex.join(["fedapps", "compare", *words]), out):
        print(file)
    return 1 if failed else 0


# ------------------------------------------------------------------------------------------------ the plan


@dataclass(frozen=True, eq=False)
class Cell:
    """One method with one seed."""

    label: str
    seed: int
    config: Mapping[str, Any]  # its run-config

    @property
    def name(self) -> str:
        return str(self.config["run-name"])

    @property
    def folder(self) -> Path:
        return Path(self.config["results-dir"], self.name)


@dataclass(frozen=True)
class Plan:
    """What is compared: cells by method, then seed; those of one seed share data and first weights."""

    algos: dict[str, dict[str, Any]]  # label -> run-config of the method
    seeds: list[int]
    folder: Path
    threads: int
    rival: str | None
    target: float | None

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells, seed by seed: what is done when a comparison is stopped can be compared."""
        at = {"results-dir": str(self.folder)}
        return [
            Cell(label, seed, {**config, "seed": seed, **at, "run-name": run_name(label, seed)})
            for seed in self.seeds
            for label, config in self.algos.items()
        ]

    @property
    def local(self) -> str | None:
        """The label that Δ% is against."""
        return next((label for label, config in self.algos.items() if config["algo"] == "local"), None)


def run_name(label: str, seed: int) -> str:
    """``fedafd-baa-false-1`` for seed 1 of ``fedafd[fedafd.baa=false]``."""
    algo = label.partition("[")[0]
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', label.replace(f'{algo}.', '').strip(']'))}-{seed}"


def read_plan(words: Sequence[str]) -> Plan:
    """The comparison that some ``key=value`` words ask for; ``UserError`` for the first that makes none."""
    config = run_config(words)
    algos, seeds = parse_algos(str(config.pop("algos", ""))), parse_seeds(str(config.pop("seeds", "1,2,3")))
    rival, target = config.pop("rival", None), config.pop("target", None)
    if rival is not None and rival not in algos:
        raise UserError(f"rival: {rival} is not among algos{nearest(str(rival), algos)}")
    if target is not None and type(target) not in (int, float):
        raise UserError(f"target: must be a number, not {target!r}")
    for key in config:
        if key in ("algo", "seed"):
            raise UserError(f"{key}: a comparison has several; write {key}s=")
        if key == "resume":
            raise UserError("resume: a comparison always goes on where it stopped; leave it out")
        if "." in key:
            owner = key.partition(".")[0]
            raise UserError(f"{key}: is a key of one method; write it in brackets: algos={owner}[{key}=...]")
    folder, name = Path(config.pop("results-dir")), config.pop("run-name", None)
    settings, scenario = read(config)
    if name is None:
        name = hashlib.sha256(json.dumps([scenario.dump(), config], sort_keys=True).encode()).hexdigest()[:8]
    return Plan(
        algos={label: config | own for label, own in algos.items()},
        seeds=seeds,
        folder=folder / f"compare-{Path(settings.scenario).stem}-{name}",
        threads=scenario.threads,
        rival=rival,
        target=target,
    )


def parse_algos(text: str) -> dict[str, dict[str, Any]]:
    """``local,fedafd[fedafd.baa=false]`` as label -> the settings that it has for itself, ``algo`` among them."""
    if not re.fullmatch(rf"{ALGO.pattern}(,{ALGO.pattern})*", text):
        raise UserError(
            f"algos: must be methods with commas between, such as local,fedafd[fedafd.baa=false]; not '{text}'"
        )
    found: dict[str, dict[str, Any]] = {}
    for match in ALGO.finditer(text):
        label, own = match[0].strip(), parse_words(match[2].split(",")) if match[2] else {}
        for key in own:
            if key in COMMON | {"algo", "seed", "resume"}:
                raise UserError(f"algos: {label}: {key} is one for the whole comparison; it cannot stand in brackets")
        if run_name(label, 0) in [run_name(other, 0) for other in found]:
            raise UserError(f"algos: {label} is there twice")
        found[label] = {"algo": match[1].strip(), **own}
    return found


def parse_seeds(text: str) -> list[int]:
    """``1,2,3`` as numbers."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise UserError(f"seeds: must be whole numbers with commas between, such as 1,2,3; not '{text}'")
    seeds = [int(seed) for seed in text.split(",")]
    if len(set(seeds)) < len(seeds):
        raise UserError(f"seeds: one is there twice in {text}")
    return seeds


def problems(plan: Plan) -> list[str]:
    """A line for each method that cannot run, with the first reason."""
    found: dict[str, str] = {}
    for cell in plan.cells:
        first = cell.label == next(iter(plan.algos))  # participants' data and models are the same for all methods
        try:
            settings, scenario = read(cell.config)
            checks.check(settings, scenario, Holdings(scenario, cell.seed, settings.data_path), private=first)
        except UserError as error:
            found.setdefault(cell.label, f"{cell.label}: {error}")
    return list(found.values())


# ----------------------------------------------------------------------------------------------- the cells


def finished(cell: Cell) -> bool:
    """Whether a cell is done; ``UserError`` where its folder holds a run with other settings."""
    if not (cell.folder / "run.json").is_file():
        return False
    settings, scenario = read({**cell.config, "resume": True})
    try:
        check_run_folder(settings, scenario)
        about = read_about(cell.folder)
        done, asked = about["settings"]["num-server-rounds"], settings.num_server_rounds
        if done > asked:
            raise UserError(f"num-server-rounds was {done} in that run and is {asked} now")
    except UserError as error:
        raise UserError(f"{cell.folder}: {error}; or choose another run-name") from error
    return about["status"] == "finished" and done == asked


def run_cells(plan: Plan, lock: int) -> dict[Cell, str]:
    """Run what is not finished, several cells at once; the reasons of those that failed."""
    waiting = [cell for cell in plan.cells if not finished(cell)]
    before = len(plan.cells) - len(waiting)
    print(f"{plan.folder}: {len(plan.cells)} cells, {before} of them finished before", flush=True)
    running: dict[Cell, subprocess.Popen[bytes]] = {}
    failed: dict[Cell, str] = {}
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while waiting or running:
            while waiting and len(running) < at_once(plan.threads):
                cell = waiting.pop(0)
                running[cell] = start(cell, plan.threads, lock)
            for cell in [cell for cell, process in running.items() if process.poll() is not None]:
                reason = why_failed(cell, running.pop(cell).returncode)
                if reason is not None:
                    failed[cell] = reason
                print(f"{cell.name}: {f'failed: {reason}' if reason else 'finished'}", flush=True)
            time.sleep(0.1)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
        signal.signal(signal.SIGTERM, handler)
    return failed


def start(cell: Cell, threads: int, lock: int) -> subprocess.Popen[bytes]:
    """Start a cell's process, or start it again from its last checkpoint; what it says goes to a log beside it."""
    resume = (cell.folder / "run.json").is_file()
    if not resume:  # it may have been stopped before its first word
        shutil.rmtree(cell.folder, ignore_errors=True)
    config = json.dumps({**cell.config, "resume": resume})
    path = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")]
    with log_of(cell).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "simulations.compare", "--cell", config],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[lock],  # held as long as a cell runs, even if this process is killed
        )


def log_of(cell: Cell) -> Path:
    return cell.folder.with_name(f"{cell.name}.log")


def why_failed(cell: Cell, code: int) -> str | None:
    """The last words of a cell's process; ``None`` if it went well."""
    if code == 0:
        return None
    lines = log_of(cell).read_text(encoding="utf-8", errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no word in its log")
    return last if code > 0 else f"killed by signal {-code}, after: {last}"


def at_once(threads: int) -> int:
    """How many processes of so many threads have CPUs of their own."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cpus // threads)


@contextmanager
def alone(folder: Path) -> Iterator[int]:
    """A file that is locked while a comparison works in ``folder``; ``UserError`` if another does."""
    with writing("results-dir", folder):
        file = (folder / ".lock").open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{folder}: another comparison is at work there; wait for its end, or stop it") from error
        yield file.fileno()


# --------------------------------------------------------------------------------------------- the numbers


@dataclass(frozen=True, eq=False)
class Result:
    """A finished cell."""

    record: Record
    summary: dict[str, Any]  # with Δ% where the Local cell of its seed is finished too

    @cached_property
    def participants(self) -> dict[str, str]:
        """Participant -> its primary metric."""
        kinds = {kind: names for kind, names in self.record.members.items() if kind != SERVER}
        return {name: self.record.primary[kind] for kind, names in kinds.items() for name in names}

    def final(self, name: str, metric: str) -> float | None:
        """A metric in the last evaluation of a participant or the server."""
        of = self.summary["server"] if name == SERVER else self.summary["participants"][name]
        return of["final"]["metrics"].get(metric) if of and of["final"] else None

    def groups(self, metric: str) -> dict[str, list[str]]:
        """The kinds that have ``metric`` as their primary one, before them all together if they are several."""
        members = {kind: names for kind, names in self.record.members.items() if self.record.primary[kind] == metric}
        kinds = [kind for kind in members if kind != SERVER]
        together = {MEAN: [name for kind in kinds for name in members[kind]]} if len(kinds) > 1 else {}
        return together | members

    def curve(self, metric: str | None = None) -> dict[int, float]:
        """The mean primary metric by round, of all participants or those that have ``metric`` as theirs. Rounds
        that somebody missed are left out."""
        names = {name: primary for name, primary in self.participants.items() if metric in (None, primary)}
        curves = [curve for name, primary in names.items() if (curve := self.record.curve(name, primary))]
        rounds = set.intersection(*map(set, curves)) if curves else set()
        return {r: fmean(curve[r] for curve in curves) for r in sorted(rounds)}


def gather(plan: Plan, failed: Mapping[Cell, str]) -> dict[Cell, Result]:
    """What finished cells have recorded."""
    folders = {(cell.label, cell.seed): cell.folder for cell in plan.cells if cell not in failed}
    found = {}
    for cell in plan.cells:
        if cell not in failed:
            local = None if cell.label == plan.local else folders.get((plan.local or "", cell.seed))
            found[cell] = Result(read_record(cell.folder), summarise(cell.folder, local))
    return found


def metrics(result: Result) -> dict[str, float | None]:
    """Final metrics: the primary one of each kind (mean over its participants) and of the server, and beside accuracy
    that on the participants' own class mixes."""
    found: dict[str, float | None] = {}
    for metric in dict.fromkeys(result.record.primary.values()):
        for group, names in result.groups(metric).items():
            found[f"{group} {metric}"] = mean_of(result.final(name, metric) for name in names)
            own_mix = mean_of(result.final(name, OWN_MIX) for name in names)
            found |= {} if own_mix is None else {f"{group} own mix": own_mix}
    return found


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of those that are there."""
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def better(mine: Result, other: Result) -> float | None:
    """Per cent of the participants whose final primary metric is higher than in another run."""
    pairs = [(mine.final(name, metric), other.final(name, metric)) for name, metric in mine.participants.items()]
    higher = [a > b for a, b in pairs if a is not None and b is not None]
    return 100 * fmean(higher) if higher else None


def costs(result: Result, target: float | None) -> dict[str, float | None]:
    """What a run has cost: to a target value of the mean primary metric, and in a round on average."""
    record, found = result.record, {}
    if target is not None:
        reached = next((r for r, value in result.curve().items() if r > 0 and value >= target), -1)
        sent = [record.bytes_by_round(way) for way in ("bytes_up", "bytes_down")]
        num_bytes = sum(value for way in sent for r, value in way.items() if r <= reached)
        seconds = sum(row["seconds"] for row in record.rows if row["phase"] == "round" and row["round"] <= reached)
        for what, spent in (("rounds", reached), ("bytes", num_bytes), ("seconds", seconds)):
            found[f"{what} to {target:g}"] = spent if reached > 0 else None
    a_round = result.summary["bytes"]["per_round"]
    found |= {"bytes up a round": a_round["up"], "bytes down a round": a_round["down"]}
    return found | {"seconds a round": result.summary["seconds"]["per_round"]}


# ---------------------------------------------------------------------------------------------- the report


@dataclass(frozen=True)
class Report:
    """All numbers of a comparison, and how they are shown."""

    plan: Plan
    results: Mapping[Cell, Result]
    failed: Mapping[Cell, str]

    @cached_property
    def rows(self) -> dict[str, dict[str, list[float]]]:
        """Label -> column -> the values of the seeds that have one."""
        found = {cell: self.figures(cell) for cell in self.results}
        columns = dict.fromkeys(column for values in found.values() for column in values)
        return {
            label: {
                column: [
                    value
                    for cell, values in found.items()
                    if cell.label == label and (value := values.get(column)) is not None
                ]
                for column in columns
            }
            for label in self.plan.algos
        }

    def figures(self, cell: Cell) -> Figures:
        """The row of a single cell."""
        result, plan = self.results[cell], self.plan
        found = metrics(result)
        if plan.local is not None:
            found[f"Δ% to {plan.local}"] = result.summary.get("delta_percent", {}).get("final")
        if plan.rival is not None:
            rivals = [r for c, r in self.results.items() if (c.label, c.seed) == (plan.rival, cell.seed)]
            found[f"% better than {plan.rival}"] = (
                better(result, rivals[0]) if rivals and result not in rivals else None
            )
        return found | costs(result, plan.target)

    @property
    def columns(self) -> list[str]:
        return list(next(iter(self.rows.values())))

    def sections(self) -> dict[str, list[str]]:
        """Columns of what came out and of what it took, each a table for itself."""
        cost = [column for column in self.columns if column.startswith(("rounds ", "bytes ", "seconds "))]
        return {"Final metrics": [column for column in self.columns if column not in cost], "Costs": cost}

    def shown(self, label: str, column: str) -> str:
        """Mean ± sd over seeds; with a count where some seeds have no value."""
        values = self.rows[label][column]
        if not values:
            return "-"
        if column.startswith("bytes "):
            text = size(fmean(values))
        else:
            digits = "+.1f" if column.startswith("Δ") else ".2f" if column.startswith("seconds") else ".1f"
            text = f"{fmean(values):{digits}}"
            text += f" ± {stdev(values):{digits.strip('+')}}" if len(values) > 1 else ""
        return text if len(values) == len(self.plan.seeds) else f"{text} ({len(values)}/{len(self.plan.seeds)})"

    def tables(self) -> Iterator[Table]:
        for title, columns in self.sections().items():
            table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
            table.add_column("", no_wrap=True)
            for column in columns:
                table.add_column(Text(column), justify="right")
            for label in self.rows:
                table.add_row(Text(label), *(self.shown(label, column) for column in columns))
            yield table

    def notes(self) -> list[str]:
        """How to read the tables, and what went wrong."""
        seeds = ", ".join(map(str, self.plan.seeds))
        found = [
            f"Mean ± sd (n−1) over seeds {seeds}, after the last round, in percent; each participant counts alike."
        ]
        if any(column.endswith(" own mix") for column in self.columns):
            found.append("Own mix: accuracy with the classes weighed as in a participant's own training data.")
        if self.plan.local is not None:
            found.append(f"Δ%: relative change of the primary metric to {self.plan.local}, mean over participants.")
        if self.plan.target is not None:
            found.append("The target is one of the mean primary metric of all participants; '-': not reached.")
        if any(len(values) < len(self.plan.seeds) for row in self.rows.values() for values in row.values() if values):
            found.append("(1/3): one of three seeds has a value, and it alone is shown.")
        for cell, result in self.results.items():
            if missed := result.summary["failures"]:
                who = ", ".join(f"{name} ({count})" for name, count in missed.items())
                found.append(f"{cell.label}, seed {cell.seed}: left out of a phase: {who}")
        return found + [f"{cell.label}, seed {cell.seed}: failed: {reason}" for cell, reason in self.failed.items()]


def write(report: Report, command: str, folder: Path) -> list[Path]:
    """Write ``compare.md``, ``compare.csv`` and, if a cell has finished, ``compare.png``."""
    files = [folder / f"compare.{ending}" for ending in ("md", "csv", "png")]
    with writing("out", folder), plt.rc_context(STYLE):
        files[0].write_text(markdown(report, command), encoding="utf-8")
        write_csv(files[1], report)
        if not report.results:
            return files[:2]
        figure = draw(report)
        figure.savefig(files[2])
        plt.close(figure)
    return files


def markdown(report: Report, command: str) -> str:
    """The tables, and all that is needed to make them again."""
    lines = [f"# {', '.join(report.plan.algos)}", "", f"`{command}`"]
    for title, columns in report.sections().items():
        lines += ["", f"## {title}", "", _line(["", *columns]), _line(["---", *["---:"] * len(columns)])]
        lines += [_line([label, *(report.shown(label, column) for column in columns)]) for label in report.rows]
    lines += ["", *(f"- {note}" for note in report.notes()), *(f"- {line}" for line in circumstances(report))]
    return "\n".join(lines) + "\n"


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(text.replace('|', '/') for text in texts)} |"


def circumstances(report: Report) -> list[str]:
    """Where, when and with what the cells ran."""
    runs = [result.record.about for result in report.results.values()]
    versions = {", ".join(f"{name} {number}" for name, number in about["versions"].items()) for about in runs}
    cells = min(at_once(report.plan.threads), len(report.plan.cells))
    return [
        f"Run on {at_once(1)} CPUs ({cpu_model()}), {cells} cells at once; threads of each: {report.plan.threads}.",
        f"{platform.platform()}, Python {platform.python_version()}; {now()}.",
        *(f"Versions: {text}." for text in sorted(versions)),
    ]


def cpu_model() -> str:
    """``AMD EPYC 7763 64-Core Processor``."""
    file = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", file.read_text(), re.MULTILINE) if file.is_file() else None
    return found[1] if found else platform.processor() or platform.machine()


def write_csv(file: Path, report: Report) -> None:
    """A row for each method, mean and sd of each column; empty where there is no value."""
    with file.open("w", newline="", encoding="utf-8") as out:
        table = csv.writer(out)
        heads = [f"{column} {what}" for column in report.columns for what in ("mean", "sd")]
        table.writerow(["algo", "finished seeds", *heads, "failed"])
        for label, row in report.rows.items():
            seeds = [cell.seed for cell in report.results if cell.label == label]
            pairs = [(fmean(v) if v else "", stdev(v) if len(v) > 1 else "") for v in row.values()]
            failed = [f"seed {cell.seed}: {reason}" for cell, reason in report.failed.items() if cell.label == label]
            values = [value for pair in pairs for value in pair]
            table.writerow([label, " ".join(map(str, seeds)), *values, "; ".join(failed)])


# --------------------------------------------------------------------------------------------- the picture


def draw(report: Report) -> Figure:
    """For each primary metric the final values with their sd as bars, and the participants' mean by round. Colour
    tells methods apart, hatch, line and marker do so in grey."""
    first = next(iter(report.results.values()))
    names = list(dict.fromkeys(first.record.primary.values()))
    figure, axes = plt.subplots(2, len(names), figsize=(7.2, 5.4), squeeze=False)
    for metric, upper, lower in zip(names, axes[0], axes[1], strict=True):
        groups = list(first.groups(metric))
        bars = _bars(upper, report, [f"{group} {metric}" for group in groups])
        upper.set_xticks(range(len(groups)), groups)
        upper.set_ylabel(f"{metric} (%)")
        lines = _curves(lower, report, metric)
        lower.set(xlabel="round", ylabel=f"{metric} (%), mean of all")
        lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    look = {tuple: HandlerTuple(ndivide=None)}
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": 3, "handlelength": 4, "frameon": False}
    handles: Any = list(zip(bars, lines, strict=True))
    figure.legend(handles, list(report.rows), handler_map=look, **where)
    seeds = ", ".join(map(str, report.plan.seeds))
    figure.suptitle(f"{first.record.scenario.name}, seeds {seeds}: final mean ± sd, and mean by round", fontsize=9)
    return figure


def _bars(axis: Axes, report: Report, columns: Sequence[str]) -> list[Artist]:
    """A bar for each method in each column."""
    width = 0.8 / len(report.rows)
    drawn: list[Artist] = []
    for i, row in enumerate(report.rows.values()):
        have = {x: row[column] for x, column in enumerate(columns) if row[column]}
        bars = axis.bar(
            [x + (i + 0.5) * width - 0.4 for x in have],
            [fmean(values) for values in have.values()],
            width,
            yerr=[stdev(values) if len(values) > 1 else 0 for values in have.values()],
            error_kw={"elinewidth": 0.8, "capsize": 1.5},
            color=COLOURS[i % len(COLOURS)],
            hatch=HATCHES[(i + i // len(COLOURS)) % len(HATCHES)],
            edgecolor="white",
            linewidth=0,
        )
        drawn.append(bars[0] if have else Patch(alpha=0))
    axis.grid(axis="x", visible=False)
    return drawn


def _curves(axis: Axes, report: Report, metric: str) -> list[Artist]:
    """A line for each method."""
    drawn: list[Artist] = []
    for i, label in enumerate(report.rows):
        curves = [result.curve(metric) for cell, result in report.results.items() if cell.label == label]
        rounds = sorted({r for curve in curves for r in curve})
        mean = [fmean(curve[r] for curve in curves if r in curve) for r in rounds]
        look: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i % len(STYLES)]}
        drawn += axis.plot(rounds, mean, marker=MARKERS[(i + i // len(COLOURS)) % len(MARKERS)], linewidth=1.3, **look)
    return drawn


# ---------------------------------------------------------------------------------------- a cell's process


def main() -> None:
    """``python -m simulations.compare --cell RUN-CONFIG``: one cell, its run-config as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cell", type=json.loads, required=True, metavar="JSON")
    try:
        run(parser.parse_args().cell)
    except (UserError, RunFailed) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
