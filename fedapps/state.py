"""Personal state and checkpoints on disk: trees of tensors and plain values, in safetensors, written atomically."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from logging import WARNING
from pathlib import Path
from typing import Any

import torch
import xxhash
from flwr.common.logger import log
from safetensors import SafetensorError
from safetensors.torch import load, save_file

from fedapps.files import put

_FILE = re.compile(r"^r(\d+)-s(\d+)\.safetensors$")
Version = tuple[int, int]
"""(round, step): a step counts the phases of a round."""


def save_tree(path: Path, tree: Any, run: str = "") -> None:
    """Write nested dicts, lists, tensors and plain values (a module's or optimiser's state dict) to ``path``, with the
    id of the run that they are of, and a checksum of all of it.

    The file appears whole or not at all. Tensors of one dtype are one array in it: safetensors 0.8 loses some bytes of
    memory for each that it writes or reads, which adds up over hundreds of rounds.
    """
    parts: dict[str, list[torch.Tensor]] = {}
    about = json.dumps({"tree": _split(tree, parts), "run": run})
    flat = {dtype: torch.cat(some) for dtype, some in parts.items()}
    metadata = {"about": f"{_checksum(about, flat)} {about}"}  # one entry: the order of two may vary
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    try:
        save_file(flat, part, metadata=metadata)
        put(part, path)
    finally:
        part.unlink(missing_ok=True)


def load_tree(path: Path, run: str | None = None) -> Any:
    """What ``save_tree`` wrote, on the CPU; SafetensorError or ValueError if the file is damaged, or of another run
    than ``run``."""
    data = path.read_bytes()
    flat = load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    checksum, _, text = header.get("__metadata__", {}).get("about", "").partition(" ")
    if checksum != _checksum(text, flat):
        raise ValueError("it is damaged, or of another version: its checksum is wrong")
    about = json.loads(text)
    if run not in (None, about["run"]):
        raise ValueError("it is of an earlier run of this name")
    return _join(about["tree"], flat, dict.fromkeys(flat, 0))


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a tree with the way to each, e.g. ``optimizer/state/0/exp_avg``."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(value, f"{path}/{key}" if path else str(key))


def _checksum(about: str, flat: Mapping[str, torch.Tensor]) -> str:
    hashed = xxhash.xxh3_128(about.encode())
    for dtype in sorted(flat):
        hashed.update(dtype.encode())
        hashed.update(flat[dtype].reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def _split(node: Any, parts: dict[str, list[torch.Tensor]]) -> Any:
    if isinstance(node, torch.Tensor):
        dtype = str(node.dtype).removeprefix("torch.")
        parts.setdefault(dtype, []).append(node.detach().cpu().reshape(-1))
        return {"tensor": [dtype, list(node.shape)]}
    if isinstance(node, dict):
        return {"dict": [[key, _split(value, parts)] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        return {type(node).__name__: [_split(value, parts) for value in node]}
    return {"value": node}


def _join(node: Any, flat: Mapping[str, torch.Tensor], read: dict[str, int]) -> Any:
    """``read``: how much of each array has been taken; tensors are in the order in which they were split off."""
    ((kind, inner),) = node.items()
    if kind == "tensor":
        dtype, shape = inner
        start = read[dtype]
        read[dtype] += math.prod(shape)
        return flat[dtype][start : read[dtype]].reshape(shape).clone()
    if kind == "dict":
        return {key: _join(value, flat, read) for key, value in inner}
    if kind in ("list", "tuple"):
        items = [_join(value, flat, read) for value in inner]
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
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.suffix == ".part" or path.name.startswith(".tmp"):  # of a process that was killed while it wrote
                path.unlink(missing_ok=True)
        for later in self.versions():  # left by an interrupted run that is being repeated
            if later > version:
                self.path(later).unlink()
        save_tree(self.path(version), tree, self.run or "")
        older = [found for found in self.versions() if found[0] < version[0]]
        for old in older[:-1]:
            self.path(old).unlink()
