"""Tasks by name: ``classification``, ``multilabel``, ``segmentation``, ``retrieval``.

Every score is in percent, except ``loss``.
"""

from __future__ import annotations

from typing import Any

from fedapps.errors import UserError
from fedapps.hints import nearest
from fedapps.models.options import call
from fedapps.tasks.base import Task
from fedapps.tasks.labels import Classification, MultiLabel, Segmentation
from fedapps.tasks.retrieval import Retrieval

__all__ = ["METRICS", "TASKS", "Task", "build_task"]

TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "multilabel": MultiLabel,
    "segmentation": Segmentation,
    "retrieval": Retrieval,
}

METRICS = frozenset(
    ["loss", "accuracy", "macro_f1", "micro_f1", "accuracy_own_mix", "map", "labels_left_out", "miou", "pixel_accuracy"]
    + [
        f"{name}{folds}"
        for folds in ("", "_5fold")
        for name in [
            *(f"{way}_r{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)),
            *("r1_sum", "r10_sum", "rsum", "ties", "gallery_images", "gallery_texts"),
        ]
    ]
    + ["r1_sum_all"]
)
"""The names of all scores: what a participant may say of its tests."""


def build_task(name: str, **options: Any) -> Task:
    """The task ``name``; UserError for an unknown name or option, or a wrong value."""
    if name not in TASKS:
        raise UserError(f"unknown task '{name}'{nearest(name, TASKS)}")
    return call(f"task {name}", TASKS[name], **options)
