"""A run of many rounds needs no more memory at its end than at its beginning."""

from __future__ import annotations

import gc
from statistics import median

import psutil
import pytest

from fedapps.results.progress import Progress
from simulations.in_process import run


@pytest.mark.slow
def test_two_hundred_rounds_need_no_more_memory_than_thirty(tiny: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Private memory of this process, with server and participants in it. One that keeps every reply, 75 kB a round,
    grows by more than 10 MB."""
    plain, held = Progress.round_done, list[float]()

    def round_done(self: Progress, server_round: int) -> None:
        plain(self, server_round)
        if 20 < server_round <= 30 or server_round > 190:
            gc.collect()
            held.append(psutil.Process().memory_full_info().uss / 1e6)

    monkeypatch.setattr(Progress, "round_done", round_done)
    run({**tiny, "algo": "fedmrl", "scenario": "mrl-tiny", "num-server-rounds": 200})
    assert len(held) == 20 and median(held[10:]) - median(held[:10]) < 10
