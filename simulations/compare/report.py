"""What came out of a comparison: its numbers, and the tables, ``compare.md`` and ``compare.csv`` that show them."""

from __future__ import annotations

import csv
import platform
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedapps.results.folder import now
from fedapps.results.record import MEAN, SERVER, Record, read_record
from fedapps.results.summary import summarise
from fedapps.results.table import size
from simulations.compare.cells import at_once, of_other_code
from simulations.compare.plan import Cell, Plan
from simulations.compare.shapley import figures, in_words

Figure = tuple[str, str, float | None]
"""Table, column, and what one cell has in it."""

FINAL, COSTS, OWN_MIX = "Final metrics", "Costs", "accuracy_own_mix"
HINTS = {  # part of a column's name -> what it means
    "own mix": "Own mix: accuracy with the classes weighed as in a participant's own training data.",
    "Δ%": "Δ%: relative change of the primary metric, mean over participants; one at 0 under Local has none.",
    "Δ% own mix": "Δ% own mix: relative change of the accuracy on the own mix, mean over participants.",
    "rounds to": "Target: of the mean primary metric of all participants; '-': not reached.",
    "φ": "φ: what a type of participants adds to v, by Shapley; v(none): nobody has trained, and all only test.",
    "bytes": "Bytes: of all participants together; those a round without what is sent for tests alone.",
}


@dataclass(frozen=True, eq=False)
class Result:
    """A finished cell."""

    record: Record
    summary: dict[str, Any]  # with Δ% where the Local cell of its seed is finished too

    @cached_property
    def parties(self) -> dict[str, Any]:
        """What the summary says of each participant and of the server, if it has a task."""
        server = self.summary["server"]
        return self.summary["participants"] | ({SERVER: server} if server else {})

    @cached_property
    def groups(self) -> dict[str, dict[str, list[str]]]:
        """Primary metric -> kind -> members; first stand all participants together, if they are of several kinds."""
        found: dict[str, dict[str, list[str]]] = {}
        for name, party in self.parties.items():
            found.setdefault(party["metric"], {}).setdefault(party["kind"], []).append(name)
        for metric, kinds in found.items():
            several = [names for kind, names in kinds.items() if kind != SERVER]
            found[metric] = ({MEAN: list(chain(*several))} if len(several) > 1 else {}) | kinds
        return found

    def final(self, name: str, metric: str) -> float | None:
        """A metric in the last evaluation of a participant or the server."""
        final = self.parties[name]["final"]
        return final and final["metrics"].get(metric)

    def mean(self, names: Iterable[str], metric: str) -> float | None:
        """The mean of a final metric over those that have it."""
        found = [value for name in names if (value := self.final(name, metric)) is not None]
        return fmean(found) if found else None

    @cached_property
    def worth(self) -> tuple[str, float | None]:
        """What coalitions are valued by: the final metric of the server; where it has no task, the mean of those of
        image-text participants."""
        participants = self.record.scenario.by_name.items()
        pairs = [name for name, entry in participants if entry.modality == "image-text"]
        names, who = ([SERVER], SERVER) if SERVER in self.parties else (pairs, "image-text participants'")
        metric = self.parties[names[0]]["metric"]
        return f"{who} {metric}", self.mean(names, metric)

    def curve(self, names: Iterable[str]) -> dict[int, float]:
        """The mean primary metric by round; rounds that somebody missed are left out."""
        curves = [curve for name in names if (curve := self.record.curve(name, self.parties[name]["metric"]))]
        rounds = set.intersection(*map(set, curves)) if curves else set()
        return {r: fmean(curve[r] for curve in curves) for r in sorted(rounds)}


def gather(plan: Plan, failed: Container[Cell]) -> dict[Cell, Result]:
    """What finished cells have recorded."""
    done = [cell for cell in plan.cells if cell not in failed]
    local = {cell.seed: cell.folder for cell in done if cell.label == plan.local}
    base = {cell: local.get(cell.seed) for cell in done if cell.label != plan.local}
    return {cell: Result(read_record(cell.folder), summarise(cell.folder, base.get(cell))) for cell in done}


def gather_coalitions(plan: Plan, failed: Container[Cell]) -> dict[Cell, Result]:
    """What finished cells in which some types alone train have recorded."""
    done = [cell for cell in plan.coalitions if cell not in failed]
    return {cell: Result(read_record(cell.folder), summarise(cell.folder)) for cell in done}


# ------------------------------------------------------------------------------------- the numbers of a cell


def finals(result: Result) -> Iterator[Figure]:
    """Means of the primary metric, and of what stands beside it where it is there: accuracy on the participants' own
    class mixes, and of retrieval the matches among the first ten."""
    for primary, groups in result.groups.items():
        for metric, name in ((primary, primary), (OWN_MIX, "own mix"), ("r10_sum", "r10_sum")):
            for group, members in groups.items():
                value = result.mean(members, metric)
                single = MEAN in groups and group not in (MEAN, SERVER)
                if metric == primary or value is not None:
                    yield f"{name} by kind" if single else FINAL, f"{group} {name}", value


def against(plan: Plan, result: Result, local: Result | None, rival: Result | None) -> Iterator[Figure]:
    """How a run stands to those of Local and of the rival with the same seed, on the own mix too where there is one."""
    own = result.mean(result.summary["participants"], OWN_MIX) is not None
    metrics = [("", None), ("own mix ", OWN_MIX)] if own else [("", None)]
    for name, metric in metrics if plan.local is not None else ():
        yield FINAL, f"Δ% {name}to {plan.local}", change(result, local, metric)
    for name, metric in metrics if plan.rival is not None else ():
        higher = [100.0 * (mine > other) for mine, other in pairs(result, rival, metric)]
        yield FINAL, f"% {name}better than {plan.rival}", fmean(higher) if higher else None


def in_detail(plan: Plan, seed: int, result: Result, local: Result | None) -> Iterator[Figure]:
    """Δ% to Local of each kind of participant, and of each seed: the paired differences that a mean hides."""
    kinds = list(dict.fromkeys(party["kind"] for party in result.summary["participants"].values()))
    for kind in kinds if plan.local is not None and len(kinds) > 1 else ():
        yield f"Δ% to {plan.local} by kind", f"Δ% {kind}", change(result, local, kind=kind)
    if plan.local is not None and len(plan.seeds) > 1:
        yield f"Δ% to {plan.local} by seed", f"Δ% seed {seed}", change(result, local)


def change(result: Result, base: Result | None, metric: str | None = None, kind: str | None = None) -> float | None:
    """Relative change in percent, mean over participants; ``None`` where nobody has the metric in both runs."""
    changes = [100 * (mine - other) / other for mine, other in pairs(result, base, metric, kind) if other]
    return fmean(changes) if changes else None


def pairs(
    result: Result, base: Result | None, metric: str | None, kind: str | None = None
) -> Iterator[tuple[float, float]]:
    """A final metric, ``None`` for the primary one, of each participant (of a kind) that has it in both of two runs."""
    if base is None or base is result:
        return
    for name, party in result.summary["participants"].items():
        mine, other = (run.final(name, metric or party["metric"]) for run in (result, base))
        if mine is not None and other is not None and kind in (None, party["kind"]):
            yield mine, other


def costs(result: Result, target: float | None) -> Iterator[Figure]:
    """What a run has taken: until the mean primary metric was at the target, and in a round on average."""
    if target is not None:
        curve = result.curve(result.summary["participants"])
        reached = next((r for r, value in curve.items() if r > 0 and value >= target), None)
        rows = [row for row in result.record.rows if row["round"] <= (reached or 0)]
        num_bytes = sum(row.get("bytes_up", 0) + row.get("bytes_down", 0) for row in rows)
        seconds = sum(row["seconds"] for row in rows if row["phase"] == "round")
        for what, spent in (("rounds", reached), ("bytes", num_bytes), ("seconds", seconds)):
            yield COSTS, f"{what} to {target:g}", spent if reached else None
    for tests, name in ((False, ""), (True, "of tests ")):
        rows = [row for row in result.record.rows if (row["phase"] == "evaluate") == tests]
        for way in ("up", "down"):
            num_bytes = sum(row.get(f"bytes_{way}", 0) for row in rows)
            yield COSTS, f"bytes {way} {name}a round", num_bytes / max(len(result.record.rounds), 1)
    yield COSTS, "seconds a round", result.summary["seconds"]["per_round"]


# ------------------------------------------------------------------------------------------------ the report


@dataclass(frozen=True)
class Report:
    """All numbers of a comparison, and how they are shown."""

    plan: Plan
    results: Mapping[Cell, Result]
    failed: Mapping[Cell, str]
    coalitions: Mapping[Cell, Result] = field(default_factory=dict)

    @cached_property
    def values(self) -> dict[tuple[str, str], dict[str, list[float]]]:
        """(table, column) -> label -> the values of the seeds that have one."""
        found: dict[tuple[str, str], dict[str, list[float]]] = {}
        plan, of = self.plan, {(cell.label, cell.seed): result for cell, result in self.results.items()}
        for cell, result in self.results.items():
            others = [of.get((label or "", cell.seed)) for label in (plan.local, plan.rival)]
            detail = in_detail(plan, cell.seed, result, others[0])
            parts = (finals(result), against(plan, result, *others), detail, self.shapley(cell, result))
            for table, column, value in chain(*parts, costs(result, plan.target)):
                rows = found.setdefault((table, column), {label: [] for label in plan.algos})
                rows[cell.label] += [] if value is None else [value]
        idle = [key for key, rows in found.items() if "of tests" in key[1] and not any(chain(*rows.values()))]
        return {key: rows for key, rows in found.items() if key not in idle}

    def shapley(self, cell: Cell, whole: Result) -> Iterator[Figure]:
        """The Shapley values of the types, where they are asked for."""
        if types := self.plan.types:
            what, value = whole.worth
            some = {of.only: result for of, result in self.coalitions.items() if _alike(of, cell)}
            v = {only: result.worth[1] for only, result in some.items() if only is not None}
            yield from figures(types, what, v | {frozenset(types): value})

    def shown(self, column: str, values: Sequence[float]) -> str:
        """Mean ± sd over seeds; with a count where some seeds have no value."""
        if not values:
            return "-"
        sign, digits = "+" if column.startswith(("Δ", "φ")) else "", 2 if column.startswith("seconds") else 1
        text = f"{fmean(values):{sign}.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")
        text = size(fmean(values)) if column.startswith("bytes") else text
        whole = len(values) == len(self.plan.seeds) or len(_heads(column)) == 1
        return text if whole else f"{text} ({len(values)}/{len(self.plan.seeds)})"

    def tables(self, look: box.Box, across: int, gap: str) -> Iterator[tuple[str, Table]]:
        """Titles and tables, each of ``across`` columns at most; ``gap`` follows the first word of their heads."""
        for title in dict.fromkeys(title for title, _ in self.values):
            columns = [(column, rows) for (of, column), rows in self.values.items() if of == title]
            for start in range(0, len(columns), across):
                table = Table("", box=look)
                for column, _ in columns[start : start + across]:
                    table.add_column(Text(column.replace(" ", gap, 1)), justify="right")
                for label in self.plan.algos:
                    texts = (self.shown(column, rows[label]) for column, rows in columns[start : start + across])
                    table.add_row(Text(label, overflow="fold"), *texts)
                yield title, table

    def notes(self) -> list[str]:
        """How to read the tables, and what is missing from them."""
        seeds, columns = ", ".join(map(str, self.plan.seeds)), " ".join(column for _, column in self.values)
        over = f"Mean ± sd (n−1) over seeds {seeds}" if len(self.plan.seeds) > 1 else f"Seed {seeds}"
        found = [f"{over}, after the last round, in percent; each participant counts alike."]
        rows = chain(*(rows.values() for (_, column), rows in self.values.items() if len(_heads(column)) > 1))
        if any(0 < len(values) < len(self.plan.seeds) for values in rows):
            found.append("(1/3): one of three seeds has a value, and it alone is shown.")
        found += [hint for part, hint in HINTS.items() if part in columns]
        made = {**self.results, **self.coalitions}
        abouts = {cell: result.record.about for cell, result in made.items()}
        if others := of_other_code(abouts):
            versions = len({about.get("code-hash") for about in abouts.values()})
            several = f"Cells of {versions} version{'s' * (versions > 1)} of the code"
            found.append(f"{several}; not made by the present one alone: {others}. Another run-name runs all anew.")
        found += [f"{label}: not run: {reason}" for label, reason in self.plan.refused.items()]
        for cell, result in made.items():
            if missed := ", ".join(f"{name} ({count})" for name, count in result.summary["failures"].items()):
                found.append(f"{cell}: left out of a phase: {missed}")
        if self.plan.types:
            unknown = {cell.label: what for cell, result in made.items() for what, v in [result.worth] if v is None}
            found += [f"{label}: no Shapley value: no {what}" for label, what in unknown.items()]
        return found + [f"{cell}: failed: {reason}" for cell, reason in self.failed.items()]

    def show(self, console: Console) -> None:
        """Print tables and notes."""
        for title, table in self.tables(box.SIMPLE_HEAD, across=6, gap="\n"):
            console.print(title, table, sep="\n")
        console.print(*self.notes(), sep="\n", markup=False, highlight=False)

    def write(self, folder: Path, command: str) -> list[Path]:
        """Write ``compare.md``, with all that is needed to make the numbers again, and ``compare.csv``."""
        files = [folder / "compare.md", folder / "compare.csv"]
        with files[0].open("w", encoding="utf-8") as out, files[1].open("w", newline="", encoding="utf-8") as lines:
            print(f"# {', '.join(self.plan.algos)}\n\n`{command}`", file=out)
            for title, table in self.tables(box.MARKDOWN, across=1000, gap=" "):
                held = StringIO()  # no terminal, whatever standard output is: no colours in the file
                Console(file=held, width=10_000, color_system=None).print(table)
                print(f"\n## {title}\n\n{held.getvalue().strip()}", file=out)
            print("", *(f"- {line}" for line in self.notes() + self.circumstances()), sep="\n", file=out)
            csv.writer(lines).writerows(self.lines())
        if self.plan.types:
            files.append(folder / "shapley.csv")
            with files[-1].open("w", newline="", encoding="utf-8") as lines:
                csv.writer(lines).writerows(self.worths())
        return files

    def circumstances(self) -> list[str]:
        """Where, when and with what the cells ran."""
        runs = [result.record.about for result in self.results.values()]
        versions = {", ".join(f"{name} {number}" for name, number in about["versions"].items()) for about in runs}
        cells = min(at_once(self.plan.threads), len(self.plan.runs))
        return [
            f"Run on {at_once(1)} CPUs ({cpu_model()}), {cells} cells at once; threads of each: {self.plan.threads}.",
            f"{platform.platform()}, Python {platform.python_version()}; {now()}.",
            *(f"Versions: {text}." for text in sorted(versions)),
        ]

    def lines(self) -> Iterator[list[Any]]:
        """The lines of the CSV file: of each method mean and sd of each column, or the value of its seed; empty where
        there is none."""
        yield ["algo", "finished seeds", *(head for _, column in self.values for head in _heads(column)), "failed"]
        for label in self.plan.algos:
            mine = [(len(_heads(column)), rows[label]) for (_, column), rows in self.values.items()]
            pairs = [(fmean(v) if v else "", stdev(v) if len(v) > 1 else "")[:width] for width, v in mine]
            seeds = " ".join(str(cell.seed) for cell in self.results if cell.label == label)
            lost = [f"{cell}: {reason}" for cell, reason in self.failed.items() if cell.label == label]
            failed = [line.removeprefix(f"{label}, ") for line in lost]
            yield [label, seeds, *chain(*pairs), self.plan.refused.get(label, "; ".join(failed))]

    def worths(self) -> Iterator[list[Any]]:
        """The lines of ``shapley.csv``: v of each coalition, or why it has none."""
        yield ["algo", "seed", "trained", "metric", "v", "failed"]
        made = {**self.results, **self.coalitions}
        for whole in self.plan.cells:
            for cell in [*(some for some in self.plan.coalitions if _alike(some, whole)), whole]:
                trained = in_words(frozenset(self.plan.types) if cell.only is None else cell.only)
                what, value = made[cell].worth if cell in made else ("", None)
                shown = "" if value is None else value
                yield [cell.label, cell.seed, trained, what, shown, self.failed.get(cell, "")]
        yield from ([label, "", "", "", "", reason] for label, reason in self.plan.refused.items())


def _heads(column: str) -> list[str]:
    """The columns of the CSV file that a column of the tables becomes; one that is of a single seed stays as it is."""
    return [column] if column.startswith("Δ% seed ") else [f"{column} mean", f"{column} sd"]


def _alike(one: Cell, other: Cell) -> bool:
    """Whether two cells are of one method and seed."""
    return (one.label, one.seed) == (other.label, other.seed)


def cpu_model() -> str:
    """``AMD EPYC 7763 64-Core Processor``."""
    file = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", file.read_text(), re.MULTILINE) if file.is_file() else None
    return found[1] if found else platform.processor() or platform.machine()
