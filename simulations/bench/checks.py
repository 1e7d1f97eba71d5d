"""``python -m simulations.bench.checks``: the share of a run's time that goes into checks.

Runs methods on their scenarios in this process, server and participants together, and adds up the time in the contract
(both ways, on both sides), in looking for NaN and infinity, in what methods rule out, and in checksums of what is
stored.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from fedapps import state, wire
from fedapps.contract import Contract
from fedapps.errors import UserError
from fedapps.methods import METHODS, method
from fedapps.settings import read
from simulations.in_process import run

RUNS = {"fedafd": "emoji-quick", "fedmrl": "mrl-quick", "fedmuscle": "muscle-quick", "fedcola": "cola-quick"}


@contextmanager
def timed(*places: tuple[Any, str]) -> Iterator[list[float]]:
    """Seconds of each call of some functions, given as owner and name."""
    spent: list[float] = []

    def watch(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                spent.append(time.perf_counter() - started)

        return watched

    with ExitStack() as stack:
        for owner, name in places:
            stack.enter_context(patch.object(owner, name, watch(getattr(owner, name))))
        yield spent


def measure(algo: str, scenario: str, rounds: int, folder: Path) -> tuple[float, float]:
    """Seconds of a round, without Python's start, data and building, and those of them that are checks."""
    config = {"algo": algo, "scenario": scenario, "num-server-rounds": rounds, "evaluate-every": 1, "seed": 1}
    strategy = method(algo).load_strategy()
    places = [(Contract, "up"), (Contract, "down"), (wire, "non_finite"), (state, "_checksum"), (strategy, "check")]
    with timed((strategy, "train_round"), (strategy, "evaluate_round")) as whole, timed(*places) as spent:
        run({**config, "results-dir": str(folder), "run-name": algo})
    return sum(whole) / rounds, sum(spent) / rounds


def bench(runs: dict[str, str], rounds: int) -> None:
    """Measure and print the table."""
    table = Table("method", "scenario", "s a round", "s of checks", "%", box=box.SIMPLE_HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for algo, scenario in runs.items():
            whole, checks = measure(algo, scenario, rounds, Path(folder))
            table.add_row(METHODS[algo].title, scenario, f"{whole:.2f}", f"{checks:.4f}", f"{100 * checks / whole:.2f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulations.bench.checks", description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="*", metavar="algo=scenario", default=[f"{a}={s}" for a, s in RUNS.items()])
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        runs = dict(word.split("=", 1) for word in args.runs)
        for algo, scenario in runs.items():
            read({"algo": algo, "scenario": scenario})
        bench(runs, args.rounds)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
