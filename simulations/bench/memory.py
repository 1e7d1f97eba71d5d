"""``python -m simulations.bench.memory key=value …``: the memory of a run, from its first round to its last.

Starts ``fedapps run`` with these settings and reads, twice a second, the private memory (USS) of the process in which
Flower runs ServerApp and simulation, and of the largest of Ray's processes that train. Writes ``memory.csv`` and
``memory.png``, and prints how much each of the two held early on, at the end and at most.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import psutil
from matplotlib import pyplot as plt

from fedapps.errors import UserError
from fedapps.files import writing
from fedapps.results.folder import read_rows
from fedapps.results.plots import COLOURS, STYLE

EVERY = 0.5  # seconds


@dataclass(frozen=True)
class Sample:
    """Megabytes (10^6 bytes) at one time of a run."""

    seconds: float
    round: int  # the last that is over
    server: float
    actor: float


def bench(words: Sequence[str], out: Path) -> int:
    """Run, measure, write; the exit status of ``fedapps run``."""
    with writing("out", out):
        out.mkdir(parents=True, exist_ok=True)
    name = next((word.partition("=")[2] for word in words if word.startswith("run-name=")), "run")
    folder = out / name
    own = [f"results-dir={out}", *([] if any(word.startswith("run-name=") for word in words) else [f"run-name={name}"])]
    started = time.monotonic()
    with (out / "run.log").open("wb") as log:
        run = subprocess.Popen([_fedapps(), "run", *words, *own], stdout=log, stderr=subprocess.STDOUT)
        samples = []
        while run.poll() is None:
            samples += watch(run.pid, folder / "metrics.jsonl", started)
            time.sleep(EVERY)
    if not samples or run.returncode:
        print(f"the run failed: {out / 'run.log'} says why", file=sys.stderr)
        return run.returncode or 1
    write(samples, out)
    print("\n".join(told(samples, folder / "metrics.jsonl")))
    return 0


def _fedapps() -> str:
    return str(Path(sys.executable).with_name("fedapps"))


def watch(pid: int, rows: Path, started: float) -> list[Sample]:
    """One sample, or none as long as no participant trains."""
    servers = [process for process in psutil.process_iter(["cmdline"]) if _is(process, "flwr-simulation")]
    mine = [server for server in servers if _knows(server, rows.parent)]
    actors = [
        uss(child) for server in mine for child in server.children(recursive=True) if _is(child, "ray::ClientApp")
    ]
    if not actors or not rows.is_file():
        return []
    return [Sample(time.monotonic() - started, rounds(rows), sum(map(uss, mine)), max(actors))]


def _is(process: psutil.Process, program: str) -> bool:
    try:
        return program in " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return False


def _knows(server: psutil.Process, folder: Path) -> bool:
    """Whether a process writes to a run folder: it holds its lock."""
    try:
        return str(folder / ".lock") in {file.path for file in server.open_files()}
    except psutil.Error:
        return False


def uss(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().uss) / 1e6
    except psutil.Error:
        return 0.0


def rounds(rows: Path) -> int:
    return max((row["round"] for row in read_rows(rows)), default=0)


def write(samples: Sequence[Sample], out: Path) -> None:
    """``memory.csv`` and ``memory.png``."""
    with (out / "memory.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(Sample)])
        writer.writerows([round(value, 2) for value in astuple(sample)] for sample in samples)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6, 3))
        x = [sample.seconds for sample in samples]
        axes.plot(x, [sample.server for sample in samples], color=COLOURS[0], label="server and simulation")
        axes.plot(x, [sample.actor for sample in samples], color=COLOURS[1], label="largest training process")
        axes.set_xlabel("seconds")
        axes.set_ylabel("private memory, MB")
        axes.set_ylim(bottom=0)
        axes.set_title(f"{samples[-1].round} rounds")
        axes.legend()
        figure.savefig(out / "memory.png")
        plt.close(figure)


def told(samples: Sequence[Sample], rows: Path) -> list[str]:
    """What the samples say, in lines."""
    last = samples[-1].round
    early = [sample for sample in samples if 0.1 * last < sample.round <= 0.2 * last] or samples
    late = [sample for sample in samples if sample.round >= 0.9 * last] or samples
    lines = [f"{last} rounds, {seconds(rows):.1f} s a round"]
    for who in ("server", "actor"):
        then, now = (statistics.median(getattr(sample, who) for sample in part) for part in (early, late))
        most = max(getattr(sample, who) for sample in samples)
        lines.append(f"{who}: {then:.0f} MB in the second tenth, {now:.0f} MB in the last, {most:.0f} MB at most")
    return lines


def seconds(rows: Path) -> float:
    """Seconds of a round's phases of training, on average."""
    phases = [row for row in read_rows(rows) if row["participant"] == "mean" and row["phase"] != "evaluate"]
    return sum(row["seconds"] for row in phases) / max(len({row["round"] for row in phases}), 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulations.bench.memory", description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="+", metavar="key=value", help="settings of the run, as for `fedapps run`")
    parser.add_argument("--out", type=Path, required=True, help="folder for the run, memory.csv and memory.png")
    args = parser.parse_args()
    try:
        return bench(args.words, args.out.resolve())  # as the system names the files that are open
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
