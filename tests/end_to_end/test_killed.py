"""kill -9 at any moment, also while a checkpoint or a personal state is being written; resumed metrics are the same."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fedapps.results.folder import read_rows
from fedapps.state import Store
from simulations.in_process import run

CHANGES = ("open", "os.rename", "os.remove", "os.mkdir")
POINTS = 24


def in_a_process(work: Callable[[], object]) -> int:
    """Do it in a child; minus the signal that killed it, or its exit status."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def at_change(folder: Path, action: Callable[[int], None]) -> None:
    """Call ``action`` with 1, 2, … just before each change of a file in ``folder``, as Python's audit tells it."""
    count = 0

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        if event not in CHANGES or not str(args[0]).startswith(str(folder)):
            return
        if event == "open" and args[1] == "r":
            return
        count += 1
        action(count)

    sys.addaudithook(hook)


def rows(path: Path) -> list[dict[str, Any]]:
    """All that a run has recorded but for its seconds."""
    return [row | {"seconds": 0} for row in read_rows(path / "metrics.jsonl")]


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["fedafd"])
def test_a_run_that_is_killed_at_any_change_of_its_files_goes_on(algo: str, tiny: dict, tmp_path: Path) -> None:
    """At points spread over all that two rounds write: rows, checkpoints, personal states, run.json."""
    config = {**tiny, "algo": algo, "num-server-rounds": 3}
    whole = rows(run({**config, "run-name": "whole"}))
    tally = tmp_path / "tally"

    def counted() -> None:
        with tally.open("w") as file:
            at_change(Path(tiny["results-dir"], "counted"), lambda count: print(count, file=file, flush=True))
            run({**config, "run-name": "counted"})

    assert in_a_process(counted) == 0
    total = len(tally.read_text().split())
    assert total > 2 * POINTS
    for point in sorted({*range(1, 8), *range(3, total, total // POINTS)}):
        name = f"killed-at-{point}"

        def killed(name: str = name, point: int = point) -> None:
            at_change(
                Path(tiny["results-dir"], name),
                lambda count: os.kill(os.getpid(), signal.SIGKILL) if count == point else None,
            )
            run({**config, "run-name": name})

        assert in_a_process(killed) == -signal.SIGKILL
        path = Path(tiny["results-dir"], name)
        begun = (path / "run.json").is_file()
        assert begun or point < 10
        assert rows(run({**config, "run-name": name, "resume": begun})) == whole, point
        assert not list(path.rglob("*.part")), point


def test_a_process_killed_while_it_writes_leaves_the_version_before(tmp_path: Path) -> None:
    """Half of a large file is on the disk when it dies."""
    store = Store(tmp_path)
    store.save((1, 1), {"w": torch.ones(10)})
    child = os.fork()
    if child == 0:
        while True:
            save_file({"w": torch.zeros(20_000_000)}, tmp_path / "r00002-s0001.part")
    while len(os.listdir(tmp_path)) < 2:
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(os.listdir(tmp_path)) > 1, "it was not killed in the middle"
    assert store.versions() == [(1, 1)] and torch.equal(store.load()["w"], torch.ones(10))
    store.save((2, 1), {"w": torch.ones(10)})
    assert sorted(os.listdir(tmp_path)) == ["r00001-s0001.safetensors", "r00002-s0001.safetensors"]
