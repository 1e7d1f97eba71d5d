"""Personal state and checkpoints on disk: trees of tensors and plain values, in safetensors, written atomically."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator
from logging import WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.common.logger import log
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedapps.files import put

_FILE = re.compile(r"^r(\d+)-s(\d+)\.safetensors$")
Version = tuple[int, int]
"""(round, step): a step counts the phases of a round."""


def save_tree(path: Path, tree: Any, run: str = "") -> None:
    """Write nested dicts, lists, tensors and plain values (a module's or optimiser's state dict) to ``path``, with the
    id of the run that they are of, and a checksum of all of it.

    The file appears whole or not at all.
    """
    tensors: dict[str, torch.Tensor] = {}
    plan = _split(tree, tensors)
    about = json.dumps({"tree": plan, "run": run})
    metadata = {"about": f"{_checksum(about, tensors.values())} {about}"}  # one entry: the order of two may vary
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    try:
        save_file(tensors, part, metadata=metadata)
        put(part, path)
    finally:
        part.unlink(missing_ok=True)


def load_tree(path: Path, run: str | None = None) -> Any:
    """What ``save_tree`` wrote, on the CPU; SafetensorError or ValueError if the file is damaged, or of another run
    than ``run``."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    crc, _, text = metadata.get("about", "").partition(" ")
    names = [str(i) for i in range(len(tensors))]
    if set(tensors) != set(names) or crc != str(_checksum(text, map(tensors.__getitem__, names))):
        raise ValueError("it is damaged, or of another version: its checksum is wrong")
    about = json.loads(text)
    if run not in (None, about["run"]):
        raise ValueError("it is of an earlier run of this name")
    return _join(about["tree"], tensors)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a tree with the way to each, e.g. ``optimizer/state/0/exp_avg``."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(value, f"{path}/{key}" if path else str(key))


def _checksum(about: str, tensors: Iterable[torch.Tensor]) -> int:
    crc = zlib.crc32(about.encode())
    for tensor in tensors:
        crc = zlib.crc32(f"{tensor.dtype} {list(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc


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


def _join(node: Any, tensors: dict[str, torch.Tensor]) -> Any:
    ((kind, inner),) = node.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "dict":
        return {key: _join(value, tensors) for key, value in inner}
    if kind in ("list", "tuple"):
        items = [_join(value, tensors) for value in inner]
        return tuple(items) if kind == "tuple" else items
    return inner


class Store:
    """Versions of one state in one folder.

    A phase loads the newest version *before* its own and saves its own, so that a phase that is repeated after
    a crash starts from the same state and gives the same result. Kept are the versions of the newest round and
    the last one of the round before. Of a ``run`` that is named by its id, versions of other runs are passed over.
    """

    def __init__(self, folder: Path, run: str | None = None) -> None:
        self.folder = folder
        self.run = run

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

        A damaged file is passed over, and said: the version before it is kept for this.
        """
        return self._first(version for version in reversed(self.versions()) if before is None or version < before)

    def before(self, version: Version) -> tuple[Version, Any] | None:
        """What a phase begins from: the newest version before its own. Where the store is whole rounds ahead, as if
        the server had lost its last checkpoint, and keeps none of these, the oldest that there is: it is nearest."""
        versions = self.versions()
        ahead = versions and versions[-1][0] > version[0]
        return self.newest(version) or (self._first(versions) if ahead else None)

    def _first(self, versions: Iterable[Version]) -> tuple[Version, Any] | None:
        """The first of some versions that can be read."""
        for version in versions:
            try:
                return version, load_tree(self.path(version), self.run)
            except (OSError, SafetensorError, ValueError) as error:
                log(WARNING, "%s is passed over: %s", self.path(version), error)
        return None

    def load(self, before: Version | None = None) -> Any | None:
        """The tree of ``newest``."""
        found = self.newest(before)
        return found[1] if found else None

    def save(self, version: Version, tree: Any) -> None:
        """Write one version; raises OSError or SafetensorError, and then those before it are still there."""
        for half in self.folder.glob("*.part"):  # of a process that was killed while it wrote
            half.unlink(missing_ok=True)
        for later in self.versions():  # left by an interrupted run that is being repeated
            if later > version:
                self.path(later).unlink()
        save_tree(self.path(version), tree, self.run or "")
        older = [found for found in self.versions() if found[0] < version[0]]
        for old in older[:-1]:
            self.path(old).unlink()
