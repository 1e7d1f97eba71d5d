"""Personal state and checkpoints on disk: trees of tensors and plain values, in safetensors, written atomically."""

from __future__ import annotations

import json
import os
import re
from logging import WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.common.logger import log
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

_FILE = re.compile(r"^r(\d+)-s(\d+)\.safetensors$")
Version = tuple[int, int]
"""(round, step): a step counts the phases of a round."""


def save_tree(path: Path, tree: Any) -> None:
    """Write nested dicts, lists, tensors and plain values (a module's or optimiser's state dict) to ``path``.

    The file appears whole or not at all.
    """
    tensors: dict[str, torch.Tensor] = {}
    plan = json.dumps(_split(tree, tensors))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    save_file(tensors, part, metadata={"tree": plan})
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, path)


def load_tree(path: Path) -> Any:
    """What ``save_tree`` wrote, on the CPU."""
    with safe_open(path, framework="pt") as file:
        return _join(json.loads(file.metadata()["tree"]), file)


def _split(node: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(node, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = node.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(node, dict):
        return {"dict": [[key, _split(value, tensors)] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        return {type(node).__name__: [_split(value, tensors) for value in node]}
    return {"value": node}


def _join(node: Any, file: Any) -> Any:
    ((kind, inner),) = node.items()
    if kind == "tensor":
        return file.get_tensor(inner)
    if kind == "dict":
        return {key: _join(value, file) for key, value in inner}
    if kind in ("list", "tuple"):
        items = [_join(value, file) for value in inner]
        return tuple(items) if kind == "tuple" else items
    return inner


class Store:
    """Versions of one state in one folder.

    A phase loads the newest version *before* its own and saves its own, so that a phase that is repeated after
    a crash starts from the same state and gives the same result. Kept are the versions of the newest round and
    the last one of the round before.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def versions(self) -> list[Version]:
        """What there is, oldest first."""
        if not self.folder.is_dir():
            return []
        matches = (_FILE.match(path.name) for path in self.folder.iterdir())
        return sorted((int(m[1]), int(m[2])) for m in matches if m)

    def path(self, version: Version) -> Path:
        return self.folder / f"r{version[0]:05d}-s{version[1]:04d}.safetensors"

    def newest(self, before: Version | None = None) -> tuple[Version, Any] | None:
        """The newest version (before ``before``) that can be read, with its tree; ``None`` where there is none.

        A damaged file is said and passed over: the version before it is kept for this.
        """
        for version in reversed(self.versions()):
            if before is None or version < before:
                try:
                    return version, load_tree(self.path(version))
                except (OSError, SafetensorError, KeyError, ValueError) as error:
                    log(WARNING, "%s is damaged (%s); the version before it is taken", self.path(version), error)
        return None

    def load(self, before: Version | None = None) -> Any | None:
        """The tree of ``newest``."""
        found = self.newest(before)
        return found[1] if found else None

    def save(self, version: Version, tree: Any) -> None:
        for later in self.versions():  # left by an interrupted run that is being repeated
            if later > version:
                self.path(later).unlink()
        save_tree(self.path(version), tree)
        older = [found for found in self.versions() if found[0] < version[0]]
        for old in older[:-1]:
            self.path(old).unlink()
