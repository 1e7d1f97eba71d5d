"""``python -m simulations.bench.muscle``: the contracted Muscle loss against the paper's form.

For one user and one mini-batch: milliseconds (least of several repeats), extra memory at its peak, and bytes from the
server to the client. ``naive`` is the paper's form: the server builds S and log α of all B^M tuples and sends them,
then the client takes its loss and gradient. ``contracted`` is ``muscle_loss`` on the M batches as they are. Every
measurement has a process of its own, with one torch thread, and memory is read from Linux' /proc.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from fedapps.errors import UserError
from fedapps.files import writing
from fedapps.losses import muscle_loss, muscle_loss_from_tuples, tuple_matrix
from fedapps.losses.muscle import MOST_TUPLES
from fedapps.results.plots import COLOURS, MARKERS, STYLE, STYLES

DIM = 256
CASES = [(32, 1), (32, 2), (32, 3), (32, 4), (32, 5), (128, 3)]  # B, M
FORMS = ["naive", "contracted"]
REPEATS, SECONDS = 100, 3.0  # at most, but three repeats at least
COLUMNS = ["B", "M"] + [f"{what}, {form}" for what in ("ms", "MB", "bytes") for form in FORMS]
COLUMNS += ["× less time", "× fewer bytes"]


@dataclass(frozen=True)
class Measured:
    """One form in one case; only ``sent`` (bytes, then by formula) if it is too large to run."""

    sent: int
    ms: float | None = None
    mb: float | None = None  # 10^6 bytes
    loss: float | None = None


Results = dict[tuple[int, int], dict[str, Measured]]
"""B and M -> form -> what was measured."""


def bench(out: Path) -> int:
    """Measure all cases, print the table and write ``muscle.md`` and ``muscle.png`` to ``out``.

    Returns 0, or 1 if a claim does not hold here. Raises ``UserError`` where it cannot measure or write.
    """
    if not Path("/proc/self/clear_refs").exists():
        raise UserError("the memory benchmark needs Linux: it reads the peak from /proc/self/status")
    with writing("out", out):
        out.mkdir(parents=True, exist_ok=True)
    results = {case: {form: measured(form, *case) for form in FORMS} for case in CASES}
    claims, lines = check(results), rows(results)
    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table(*COLUMNS, title=title(), caption=note(), box=box.SIMPLE_HEAD, title_justify="left")
    table.caption_justify = "left"
    for column in table.columns:
        column.justify = "right"
    for line in lines:
        table.add_row(*line)
    console.print(table)
    told = [f"{'holds' if holds else 'DOES NOT HOLD'}: {claim}" for claim, holds in claims.items()]
    console.print("\n".join(told), markup=False, highlight=False)
    report = [f"# {title()}", "", *markdown(lines), "", note(), "", *(f"- {line}" for line in told), "", PLOT]
    with plt.rc_context(STYLE), writing("out", out):
        (out / "muscle.md").write_text("\n".join(report) + "\n", encoding="utf-8")
        figure = draw(results)
        figure.savefig(out / "muscle.png")
        plt.close(figure)
    print(out / "muscle.md", out / "muscle.png", sep="\n")
    return 0 if all(claims.values()) else 1


# ---------------------------------------------------------------------------------------------- measuring


def naive(anchor: Tensor, others: list[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    """Loss, and the message to the client: the paper's."""
    message = tuple_matrix(others)
    return muscle_loss_from_tuples(anchor, *message), message


def contracted(anchor: Tensor, others: list[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    """Loss, and the message to the client: the others' batches."""
    return muscle_loss(anchor, others), others


def measured(form: str, B: int, M: int) -> Measured:
    """``measure`` in a new process, unless there are too many tuples."""
    if form == "naive" and B**M > MOST_TUPLES:
        return Measured(4 * B**M * (DIM + 1))
    words = [sys.executable, "-m", "simulations.bench.muscle", "--measure", form, str(B), str(M)]
    child = subprocess.run(words, capture_output=True, text=True)
    if child.returncode:
        raise UserError(f"{form}, B = {B}, M = {M}: {(child.stderr.splitlines() or ['killed'])[-1]}")
    return Measured(**json.loads(child.stdout))


def measure(form: str, B: int, M: int) -> Measured:
    """One form on random unit rows; in a process that has done nothing else."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    run: Callable[..., tuple[Tensor, Sequence[Tensor]]] = {"naive": naive, "contracted": contracted}[form]

    def draw(size: int) -> tuple[Tensor, list[Tensor]]:
        anchor, *others = F.normalize(torch.randn(M + 1, size, DIM), dim=2).unbind()
        return anchor.clone().requires_grad_(), others

    def once(anchor: Tensor, others: list[Tensor]) -> tuple[float, float, int]:
        """Loss, seconds and bytes."""
        start = time.perf_counter()
        loss, message = run(anchor, others)
        loss.backward()
        return loss.item(), time.perf_counter() - start, sum(part.nbytes for part in message)

    once(*draw(4))  # what the first call of each operation takes is not the loss's
    batch = draw(B)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is in use
    before = peak()
    loss, seconds, sent = once(*batch)
    mb, times = (peak() - before) / 1e6, [seconds]
    while len(times) < 3 or (len(times) < REPEATS and sum(times) < SECONDS):
        times.append(once(*batch)[1])
    return Measured(sent, 1e3 * min(times), mb, loss)


def peak() -> int:
    """Most memory that this process has had since the mark was reset, in bytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmHWM"].split()[0])


# ---------------------------------------------------------------------------------------------- reporting


def check(results: Results) -> dict[str, bool]:
    """What is claimed of the contraction -> whether it holds here."""
    three, five = results[32, 3], results[32, 5]["contracted"]
    four, wide = results[32, 4]["contracted"], results[128, 3]["contracted"]
    pairs = [[form.loss for form in forms.values() if form.loss is not None] for forms in results.values()]
    time, sent = ratio(three, "ms"), ratio(three, "sent")
    return {
        "both forms give the same loss": all(max(pair) - min(pair) < 1e-5 * max(pair) for pair in pairs),
        f"M = 3: at least 25 times less time ({time:.0f})": time >= 25,
        f"M = 3: at least 300 times fewer bytes ({sent:.0f})": sent >= 300,
        f"M = 4: milliseconds ({four.ms:.1f})": (four.ms or 0) < 50,
        f"M = 5: less than 1 s ({five.ms:.0f} ms)": (five.ms or 0) < 1000,
        f"M = 5: less than 1 MB of message ({five.sent / 1e6:.2f} MB)": five.sent < 1e6,
        f"B = 128, M = 3: less than 10 MB of extra memory ({wide.mb:.1f} MB)": (wide.mb or 0) < 10,
    }


def ratio(forms: dict[str, Measured], what: str) -> float:
    """Naive over contracted; not a number where naive was not run."""
    above, below = (getattr(forms[form], what) for form in FORMS)
    return above / below if above is not None else math.nan


def rows(results: Results) -> list[list[str]]:
    """Cells of ``COLUMNS``, a line for each case."""

    def cell(value: float | None, form: str) -> str:
        return "not run" if value is None else format(value, form)

    lines = []
    for (B, M), forms in results.items():
        both = [forms[form] for form in FORMS]
        line = [str(B), str(M), *(cell(one.ms, ",.2f") for one in both), *(cell(one.mb, ",.1f") for one in both)]
        line += [f"{one.sent:,}" for one in both]
        time = ratio(forms, "ms")
        lines.append([*line, "" if math.isnan(time) else f"{time:,.1f}", f"{ratio(forms, 'sent'):,.1f}"])
    return lines


def markdown(lines: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (COLUMNS, ["--:"] * len(COLUMNS), *lines)]


def title() -> str:
    return f"Muscle loss, one user and one mini-batch, d = {DIM}, float32: the paper's form and the contraction"


def note() -> str:
    machine = f"torch {torch.__version__} with one thread, {platform.machine()}, {os.cpu_count()} CPUs"
    return (
        f"Least time of several repeats, forward and backward; extra memory at its peak, 1 MB = 10^6 bytes; {machine}. "
        f"Not run: more than 2^20 tuples, 32^5 of which are a message of 32 GiB; bytes by formula, 4 B^M (d + 1)."
    )


PLOT = "![Time, memory and bytes against M at B = 32](muscle.png)"


def draw(results: Results) -> Figure:
    """Time, memory and bytes against M at B = 32, logarithmic."""
    figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.6))
    at = {M: forms for (B, M), forms in results.items() if B == 32}
    panels = {"ms": "time (ms)", "mb": "extra memory (MB)", "sent": "message to the client (bytes)"}
    for axis, (what, label) in zip(axes, panels.items(), strict=True):
        for i, form in enumerate(FORMS):
            values = {M: getattr(forms[form], what) for M, forms in at.items()}
            have = {M: value for M, value in values.items() if value}
            look: dict[str, Any] = {"color": COLOURS[i], "linestyle": STYLES[i], "marker": MARKERS[i]}
            axis.plot(list(have), list(have.values()), label=form, **look)
        axis.set(xlabel="others, M", ylabel=label, yscale="log", xlim=(0.8, max(at) + 0.2))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m simulations.bench.muscle", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("bench"), help="folder of muscle.md and muscle.png")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.measure:
        form, B, M = words.measure
        print(json.dumps(asdict(measure(form, int(B), int(M)))))
        return
    try:
        sys.exit(bench(words.out))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
