"""Plots of one run or of several: learning curves and communication, readable in print.

Colour tells methods apart, line style and marker tell kinds apart, so that a grey print keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedapps.files import writing
from fedapps.methods import method
from fedapps.results.record import SERVER, Record, read_record

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]  # Okabe and Ito
STYLES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1))]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "lines.markersize": 3.5,
    "savefig.dpi": 200,
    "figure.constrained_layout.use": True,
}

Groups = Mapping[str, Sequence[Record]]
"""Label -> the runs that it stands for, e.g. the seeds of one method."""


def plot_runs(paths: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Draw ``learning.png`` and ``communication.png`` of one run, or of several in one picture, by method.

    They go to ``out``, else to the ``plots`` folder of the first run. Returns the files. UserError where a
    run folder cannot be read or the pictures cannot be written.
    """
    records = [read_record(path) for path in paths]
    groups = grouped(records)
    folder = out or records[0].path / "plots"
    files = []
    with plt.rc_context(STYLE), writing("plot", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, draw in (("learning", learning_curves), ("communication", communication)):
            figure = draw(groups)
            files.append(folder / f"{name}.png")
            figure.savefig(files[-1])
            plt.close(figure)
    return files


def grouped(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Runs by method; runs of one method with different keys of it by those too: ``fedafd[baa=false]``."""
    found: dict[str, list[Record]] = {}
    for record in records:
        alike = [other.about["settings"] for other in records if other.algo == record.algo]
        settings = record.about["settings"]
        own = [key for key in settings if key.startswith(f"{record.algo}.")]
        differ = [key for key in own if any(other.get(key) != settings[key] for other in alike)]
        shown = ",".join(f"{key.partition('.')[2]}={str(settings[key]).lower()}" for key in differ)
        found.setdefault(f"{record.algo}[{shown}]" if shown else record.algo, []).append(record)
    return found


# -------------------------------------------------------------------------------------------- learning


def learning_curves(groups: Groups) -> Figure:
    """The primary metric by round, one panel for each kind and the server: thin lines for participants, a
    thick one for their mean (over participants and runs)."""
    kinds = _kinds(groups)
    columns = min(len(kinds), 2)
    rows = -(-len(kinds) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.6 * columns, 2.6 * rows), squeeze=False)
    for axis, (kind, metric) in zip(axes.flat, kinds.items(), strict=False):
        for colour, (label, records) in zip(_cycle(COLOURS), groups.items(), strict=False):
            _learning(axis, kind, records, colour, label)
        axis.set_title(kind)
        axis.set_xlabel("round")
        axis.set_ylabel(_named(metric))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in axes.flat[len(kinds) :]:
        axis.set_visible(False)
    _legend(figure, axes.flat[0], title=_title(groups))
    return figure


def _learning(axis: Axes, kind: str, records: Sequence[Record], colour: str, label: str) -> None:
    records = [record for record in records if kind in record.members]
    thin = [record.curve(name, record.primary[kind]) for record in records for name in record.members[kind]]
    if len(thin) > 1:
        for curve in thin:
            axis.plot(list(curve), list(curve.values()), color=colour, linewidth=0.6, alpha=0.5)
    mean = _mean([record.kind_curve(kind) for record in records])
    axis.plot(list(mean), list(mean.values()), color=colour, linewidth=2, marker="o", label=label)


# -------------------------------------------------------------------------------------- communication


def communication(groups: Groups) -> Figure:
    """Left: bytes of each round, up and down. Right: the primary metric against the bytes spent so far."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2))
    for colour, (label, records) in zip(_cycle(COLOURS), groups.items(), strict=False):
        for way, style in (("up", "-"), ("down", "--")):
            mega = _mean([_mega(record.bytes_by_round(f"bytes_{way}")) for record in records])
            left.plot(list(mega), list(mega.values()), style, color=colour, marker="o", label=f"{label} {way}")
        for style, marker, (kind, metric) in zip(_cycle(STYLES), _cycle(MARKERS), _kinds(groups).items(), strict=False):
            name = f"{label}: {kind} {metric}" if len(groups) > 1 else f"{kind} {metric}"
            _against_bytes(right, kind, records, name, color=colour, linestyle=style, marker=marker)
    left.set(xlabel="round", ylabel="MB a round, all participants")
    left.set_ylim(bottom=0)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(frameon=False, fontsize=8)
    right.set(xlabel="MB so far, up and down", ylabel="primary metric (%)")
    if right.get_legend_handles_labels()[0]:  # nobody may have been tested
        right.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.suptitle(_title(groups), fontsize=9)
    return figure


def _against_bytes(axis: Axes, kind: str, records: Sequence[Record], label: str, **look: object) -> None:
    """A curve of the metric over cumulative bytes; a level line for a method that sends nothing."""
    curve = _mean([record.kind_curve(kind) for record in records if kind in record.members])
    spent = _mean([_cumulative(record) for record in records])
    points = [(spent.get(r, 0.0), value) for r, value in curve.items()]
    if not points:
        return
    if points[-1][0] == 0:
        axis.axhline(points[-1][1], label=f"{label} (final, sends nothing)", linewidth=1, **_line(look))
    else:
        axis.plot([x for x, _ in points], [y for _, y in points], label=label, linewidth=1.3, **look)  # type: ignore[arg-type]


def _line(look: Mapping[str, object]) -> dict:
    return {key: value for key, value in look.items() if key != "marker"}


def _cumulative(record: Record) -> dict[int, float]:
    """MB up and down until the end of each round."""
    up, down = record.bytes_by_round("bytes_up"), record.bytes_by_round("bytes_down")
    spent, found = 0.0, {}
    for server_round in sorted(up.keys() | down.keys()):
        spent += (up.get(server_round, 0) + down.get(server_round, 0)) / 1e6
        found[server_round] = spent
    return found


def _mega(values: Mapping[int, int]) -> dict[int, float]:
    return {r: value / 1e6 for r, value in values.items()}


# ---------------------------------------------------------------------------------------------- helpers


def _kinds(groups: Groups) -> dict[str, str]:
    """Every kind of any run with its primary metric, the server last."""
    found = {
        kind: metric for records in groups.values() for record in records for kind, metric in record.primary.items()
    }
    return {kind: found[kind] for kind in sorted(found, key=lambda kind: kind == SERVER)}


def _mean(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean of curves, round by round, over those that have the round."""
    rounds = sorted({r for curve in curves for r in curve})
    values = {r: [curve[r] for curve in curves if r in curve] for r in rounds}
    return {r: sum(found) / len(found) for r, found in values.items()}


def _cycle(items: Sequence) -> list:
    return list(items) * 20


def _named(metric: str) -> str:
    """``r1_sum`` as an axis label."""
    names = {"r1_sum": "R@1, sum of both ways (%)", "map": "mAP (%)", "miou": "mIoU (%)"}
    return names.get(metric, f"{metric.replace('_', ' ')} (%)")


def _title(groups: Groups) -> str:
    first = next(iter(groups.values()))[0]
    labels = [method(r.algo).title for records in groups.values() for r in records]
    seeds = sorted({str(record.about["seed"]) for records in groups.values() for record in records})
    return f"{', '.join(dict.fromkeys(labels))} on {first.scenario.name}, seed {', '.join(seeds)}"


def _legend(figure: Figure, axis: Axes, title: str) -> None:
    figure.suptitle(title, fontsize=9)
    handles, labels = axis.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)
