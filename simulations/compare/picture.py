"""The picture of a comparison, made to be printed, in grey too: names stand beside the bars, and lines differ in style
and marker as well as colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from statistics import fmean, stdev

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedapps.results.plots import COLOURS, MARKERS, STYLE, STYLES
from simulations.compare.report import Report, Result

BAR, AXIS = 0.17, 0.6  # inches: a bar, and what else a panel needs above and below
ACROSS = 4  # panels side by side at most

Runs = Mapping[str, Sequence[Result]]
"""Label -> the finished seeds of a method."""


@rc_context(STYLE)
def draw(report: Report) -> Figure:
    """Above, a panel for each group of participants and the server: the final primary metric and its sd. Below, one
    for each metric: the mean of all that have it by round. There must be a result."""
    first, seeds = next(iter(report.results.values())), ", ".join(map(str, report.plan.seeds))
    runs: dict[str, list[Result]] = {}
    for label in report.plan.algos:
        if found := [result for cell, result in report.results.items() if cell.label == label]:
            runs[label] = found
    panels = [(metric, group) for metric, groups in first.groups.items() for group in groups]
    lines = -(-len(panels) // ACROSS)
    heights = [lines * (BAR * len(runs) + AXIS), 2.2 + BAR * len(runs) / 2]
    figure = Figure(figsize=(7.2, sum(heights) + 0.3), layout="constrained")
    figure.suptitle(f"{first.record.scenario.name}, seeds {seeds}: final mean ± sd, and mean by round", fontsize=9)
    above, below = figure.subfigures(2, 1, height_ratios=heights, squeeze=False).flat
    axes = above.subplots(lines, -(-len(panels) // lines), sharey=True, squeeze=False).flat
    for axis, (metric, group) in zip(axes, panels, strict=False):
        _bars(axis, runs, metric, group)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, metric in zip(below.subplots(1, len(first.groups), squeeze=False).flat, first.groups, strict=True):
        _curves(axis, runs, metric, next(iter(first.groups[metric])))
    columns = 3 if max(map(len, runs)) < 22 else 2  # as many as stand beside each other
    below.legend(
        *axis.get_legend_handles_labels(), loc="outside lower center", ncols=columns, handlelength=5, frameon=False
    )
    return figure


def _bars(axis: Axes, runs: Runs, metric: str, group: str) -> None:
    """A bar for each method, its value written into it."""
    for place, results in enumerate(runs.values()):
        seeds = [result.mean(result.groups[metric][group], metric) for result in results]
        values = [value for value in seeds if value is not None]
        mean, spread = fmean(values) if values else nan, stdev(values) if len(values) > 1 else 0
        axis.barh(place, mean, xerr=spread, color="0.8", error_kw={"elinewidth": 0.9, "capsize": 2})
        text = f" {mean:.1f}" if values else " -"
        axis.text(0, place, text, fontsize=7, va="center", transform=axis.get_yaxis_transform())
    axis.set_yticks(range(len(runs)), list(runs))
    axis.set_ylim(len(runs) - 0.4, -0.6)
    axis.set_title(f"{group} {metric} (%)", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(axis="y", visible=False)


def _curves(axis: Axes, runs: Runs, metric: str, group: str) -> None:
    """A line for each method: the mean over its seeds."""
    for i, (label, results) in enumerate(runs.items()):
        curves = [result.curve(result.groups[metric][group]) for result in results]
        rounds = sorted({r for curve in curves for r in curve})
        axis.plot(
            rounds,
            [fmean(curve[r] for curve in curves if r in curve) for r in rounds],
            label=label,
            color=COLOURS[i % len(COLOURS)],
            linestyle=STYLES[i % len(STYLES)],
            marker=MARKERS[(i + i // len(COLOURS)) % len(MARKERS)],
            markevery=max(1, len(rounds) // 10),
            linewidth=1.3,
        )
    axis.set(xlabel="round", ylabel=f"{group} {metric} (%)")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
