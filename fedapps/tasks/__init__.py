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

__all__ = ["Task", "build_task"]

TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "multilabel": MultiLabel,
    "segmentation": Segmentation,
    "retrieval": Retrieval,
}


def build_task(name: str, **options: Any) -> Task:
    """The task ``name``; UserError for an unknown name or option, or a wrong value."""
    if name not in TASKS:
        raise UserError(f"unknown task '{name}'{nearest(name, TASKS)}")
    return call(f"task {name}", TASKS[name], **options)
