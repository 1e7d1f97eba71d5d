"""A run folder written by hand, small enough to work out every number of its summary."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RETRIEVAL = {
    "modality": "image-text",
    "task": {"name": "retrieval"},
    "model": {"image": {"name": "cnn"}, "text": {"name": "bag"}},
}
SCENARIO = {
    "name": "by-hand",
    "participants": [
        {
            "name": "image",
            "count": 2,
            "modality": "image",
            "task": {"name": "classification"},
            "model": {"image": {"name": "cnn"}},
            "data": {"name": "emoji", "label": "group"},
        },
        {
            "name": "text",
            "modality": "text",
            "task": {"name": "classification"},
            "model": {"text": {"name": "bag"}},
            "data": {"name": "glosses", "label": "label"},
        },
    ],
    "public": {"name": "emoji"},
    "server": {**RETRIEVAL, "test": {"name": "emoji"}},
}
ACCURACY = {"image-0": [10, 40, 30], "image-1": [20, 20, 60], "text-0": [50, 50, None]}
EXAMPLES = {"image-0": 100, "image-1": 300, "text-0": 10}
BYTES = {"image-0": (100, 1000), "image-1": (200, 2000), "text-0": (50, 500)}  # up, down, in a round
SERVER = [9, 2, 6, 6]


def rows(accuracy: dict[str, list[float | None]], server: list[float], sends: bool = True) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [_evaluated(0, "server", "r1_sum", server[0])]
    for r in range(1, len(server)):
        for name, values in accuracy.items():
            value = values[r - 1]
            if value is None:
                found.append({"round": r, "phase": "train", "participant": name, "error": "it broke"})
                continue
            up, down = BYTES[name] if sends else (0, 0)
            train = {"round": r, "phase": "train", "participant": name, "metrics": {"task_loss": 1.0}}
            found.append(train | {"num_examples": 8, "bytes_up": up, "bytes_down": down, "seconds": 0.5})
            found.append(_evaluated(r, name, "accuracy", value) | {"num_examples": EXAMPLES[name]})
        found.append({"round": r, "phase": "train", "participant": "mean", "metrics": {}, "seconds": 4.0 + r})
        found.append({"round": r, "phase": "evaluate", "participant": "mean", "metrics": {}})
        found.append(_evaluated(r, "server", "r1_sum", server[r]))
        found.append({"round": r, "phase": "round", "participant": "server", "seconds": 10.0 * r})
    return found


def _evaluated(r: int, name: str, metric: str, value: float) -> dict[str, Any]:
    return {"round": r, "phase": "evaluate", "participant": name, "metrics": {metric: value}}


def write_run(folder: Path, algo: str, found: list[dict[str, Any]], **about: Any) -> Path:
    folder.mkdir(parents=True)
    values = {
        "status": "finished",
        "reason": None,
        "algo": algo,
        "seed": 1,
        "started": "2026-01-01T10:00:00+00:00",
        "ended": "2026-01-01T10:01:30+00:00",
        "settings": {"algo": algo, "seed": 1},
        "scenario": SCENARIO,
        "versions": {"flwr": "1.42.0"},
    }
    (folder / "run.json").write_text(json.dumps(values | about))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    return folder


@pytest.fixture
def fedafd_run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "fedafd", "fedafd", rows(ACCURACY, SERVER))


@pytest.fixture
def local_run(tmp_path: Path) -> Path:
    accuracy = {"image-0": [10, 10, 20], "image-1": [50, 55, 60], "text-0": [0, 0, 0]}
    return write_run(tmp_path / "local", "local", rows(accuracy, [1, 2, 3, 4], sends=False))


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """``make_run(name, algo, **about)``: a run with the numbers of ``fedafd_run``."""
    return lambda name, algo, **about: write_run(tmp_path / name, algo, rows(ACCURACY, SERVER), **about)
