"""``fedapps compare``: several methods over several seeds on one scenario, and tables of what came out.

A cell is one method with one seed. Each has a run folder and a process of its own, in which the unchanged ServerApp
and ClientApp run (``simulations.in_process``); as many cells run at once as the machine has CPUs for.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fedapps.files import lock, writing
from simulations.compare.cells import run_cells
from simulations.compare.picture import draw
from simulations.compare.plan import read_plan, unfit
from simulations.compare.report import Report, gather, gather_coalitions


def compare(words: Sequence[str], out: Path | None = None) -> int:
    """Run every cell that is not finished, print the tables and write ``compare.md``, ``.csv`` and ``.png``.

    With ``shapley=true`` each cell runs for each coalition of types too, and ``shapley.csv`` says what came out.

    Returns 0, or 1 if a cell failed, or 2 if none was started: something is wrong with one, or the scenario suits no
    method. Raises ``UserError`` for words that make no comparison, and for a folder with cells of other settings.
    """
    plan = read_plan(words)
    refused, wrong = unfit(plan)
    if wrong or len(refused) == len(plan.algos):
        print(*(f"error: {label}: {why}" for label, why in (wrong or refused).items()), sep="\n", file=sys.stderr)
        return 2
    plan = replace(plan, refused=refused)
    out = plan.folder if out is None else out.expanduser().absolute()
    for what, folder in (("results-dir", plan.folder), ("out", out)):
        with writing(what, folder):
            folder.mkdir(parents=True, exist_ok=True)
    with lock("results-dir", plan.folder, f"{plan.folder}: another comparison is at work there") as held:
        failed = run_cells(plan, held.fileno())
    report = Report(plan, gather(plan, failed), failed, gather_coalitions(plan, failed))
    report.show(Console(width=None if sys.stdout.isatty() else 200))
    with writing("out", out):
        files = report.write(out, shlex.join(["fedapps", "compare", *words]))
        if report.results:
            draw(report).savefig(out / "compare.png", dpi=200)
            files.append(out / "compare.png")
    print(*files, sep="\n")
    return 1 if failed else 0
