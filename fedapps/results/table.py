"""A summary as a table for the terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

Values = dict[str, Any]


def result_table(summary: Values) -> Table:
    """One line for each kind and the server: final and best primary metric; below it bytes and seconds."""
    title = f"{summary['algo']} on {summary['scenario']}, seed {summary['seed']}, {summary['rounds']} rounds"
    compared = "local" in summary
    table = Table(title=title, caption=_caption(summary), box=box.SIMPLE_HEAD, title_justify="left")
    table.caption_justify = "left"
    for column in ("", "metric", "final", "by examples", "best", "round"):
        table.add_column(column, justify="left" if column in ("", "metric") else "right")
    if compared:
        table.add_column("Δ% to Local", justify="right")
    for kind, values in summary["kinds"].items():
        delta = [_signed(values["delta_percent"]["final"])] if compared else []
        table.add_row(f"{kind} ({_members(values)})", values["metric"], *_figures(values), *delta)
    if summary["server"]:
        server = summary["server"]
        delta = [_signed(server["delta_percent"]["final"])] if compared else []
        table.add_row("server", server["metric"], *_figures(server), *delta)
    return table


def _members(values: Values) -> str:
    """How many participants a kind has, and how many of them its final figures are of where that is not all."""
    over = (values["final"] or {}).get("over", {}).get(values["metric"])
    return str(values["participants"]) if over is None else f"{over} of {values['participants']}"


def _figures(values: Values) -> list[str]:
    """Final, final by examples, best and its round; of a kind (means) or of the server."""
    final, best, metric = values["final"], values["best"], values["metric"]
    if final is None:
        return ["-"] * 4
    if "metrics" in final:
        return [_number(final["metrics"].get(metric)), "", _number(best["metrics"].get(metric)), str(best["round"])]
    return [
        _number(final["mean"].get(metric)),
        _number(final["mean_by_examples"].get(metric)),
        _number(best["mean"].get(metric)),
        str(best["round"]),
    ]


def _caption(summary: Values) -> str:
    sent, seconds = summary["bytes"], summary["seconds"]
    up, down = sent["per_round"]["up"], sent["per_round"]["down"]
    a_round = "" if seconds["per_round"] is None else f", {seconds['per_round']:.1f} s a round"
    lines = [
        f"{size(sent['up'])} up, {size(sent['down'])} down ({size(up)} and {size(down)} a round, tests included)",
        f"{seconds['total']:.0f} s{a_round}",
    ]
    if summary["failures"]:
        left_out = ", ".join(f"{name} ({count})" for name, count in summary["failures"].items())
        lines.append(f"left out of a phase: {left_out}")
    final = {name: values["final"]["round"] for name, values in summary["participants"].items() if values["final"]}
    if earlier := [f"{name} (round {last})" for name, last in final.items() if last < max(final.values())]:
        lines.append(f"last tested earlier than the others: {', '.join(earlier)}")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f}"


def size(num_bytes: float) -> str:
    """Bytes for people, in powers of ten."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.2f} {unit}"
    return f"{num_bytes:.0f} B"
