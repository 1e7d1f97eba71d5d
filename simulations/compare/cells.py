"""The cells of a comparison: which are finished, and a process for each of the others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapps.code_hash import code_hash
from fedapps.errors import UserError
from fedapps.results.folder import check_run_folder, read_about
from fedapps.settings import read
from simulations.compare.plan import Cell, Plan


def run_cells(plan: Plan, lock: int) -> dict[Cell, str]:
    """Run what is not finished, several cells at once; the reasons of those that failed."""
    waiting = [cell for cell in plan.runs if not finished(cell)]
    before = f"{len(plan.runs)} cells, {len(plan.runs) - len(waiting)} of them finished before"
    others = of_other_code({cell: read_about(cell.folder) for cell in plan.runs if begun(cell)})
    told = f"; not made by the present code alone: {others}" if others else ""
    print(f"{plan.folder}: {before}{told}", flush=True)
    running: dict[Cell, subprocess.Popen[bytes]] = {}
    failed: dict[Cell, str] = {}
    ends = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN]  # nohup
    handlers = {each: signal.signal(each, signal.default_int_handler) for each in ends}
    try:
        while waiting or running:
            while waiting and len(running) < at_once(plan.threads):
                cell = waiting.pop(0)
                running[cell] = start(cell, plan.threads, lock)
                print(f"{cell.folder.name}: started", flush=True)
            for cell in [cell for cell, process in running.items() if process.poll() is not None]:
                if code := running.pop(cell).returncode:
                    failed[cell] = last_words(cell, code)
                else:
                    tidy(cell)
                print(f"{cell.folder.name}: {f'failed: {failed[cell]}' if code else 'finished'}", flush=True)
            time.sleep(0.1)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
        for each, handler in handlers.items():
            signal.signal(each, handler)
    return failed


def tidy(cell: Cell) -> None:
    """Take away models and optimisers, 300 MB of ten CNNs: for more rounds a cell starts anew."""
    for name in ("state", "checkpoint"):
        shutil.rmtree(cell.folder / name, ignore_errors=True)


def begun(cell: Cell) -> bool:
    return (cell.folder / "run.json").is_file()


def finished(cell: Cell) -> bool:
    """Whether a cell is done; ``UserError`` where its folder holds a run with other settings."""
    if not begun(cell):
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


def of_other_code(abouts: Mapping[Cell, Mapping[str, Any]]) -> str:
    """The cells that were not made by the present code alone, as ``local (seed 1, 2)``; empty where there are none."""
    seeds: dict[str, dict[str, None]] = {}
    for cell, about in abouts.items():
        if about.get("code-hash") != code_hash():
            seeds.setdefault(cell.label, {})[str(cell.seed)] = None
    return ", ".join(f"{label} (seed {', '.join(found)})" for label, found in seeds.items())


def start(cell: Cell, threads: int, lock: int) -> subprocess.Popen[bytes]:
    """Start a cell's process, or start it again from its last checkpoint; what it says goes to a log beside it."""
    if not begun(cell):  # it may have been stopped before its first word
        shutil.rmtree(cell.folder, ignore_errors=True)
    config = json.dumps({**cell.config, "resume": begun(cell)})
    path = filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")])
    with log_of(cell).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "simulations.compare", "--cell", config],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[lock],  # held as long as a cell runs, even if this process is killed
        )


def log_of(cell: Cell) -> Path:
    return cell.folder.with_name(f"{cell.folder.name}.log")


def last_words(cell: Cell, code: int) -> str:
    """Why a cell's process failed."""
    lines = log_of(cell).read_text(encoding="utf-8", errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no word in its log")
    return last if code > 0 else f"killed by signal {-code}, after: {last}"


def at_once(threads: int) -> int:
    """How many processes of so many threads have CPUs of their own."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cpus // threads)
