"""Holdings: which rows of which data set each party holds, worked out alike everywhere from scenario and seed."""

from __future__ import annotations

import hashlib
import json
import os
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from fedapps.data import Samples, digest, load
from fedapps.data.partition import partition
from fedapps.errors import UserError
from fedapps.scenario import Data, Participant, Scenario
from fedapps.seeds import seed_of


class Holdings:
    """The data of a scenario, cut for one seed. Everything is loaded on demand and kept.

    Public rows are drawn by a fixed seed, so that every run of a scenario has the same public data; private
    rows are cut from what is left, entry by entry, so that no row is held twice. Entries with the same ``data``
    are cut together: ten participants with five models share one partition into ten.
    """

    def __init__(self, scenario: Scenario, seed: int, data_path: str | None = None) -> None:
        self.scenario = scenario
        self.seed = seed
        self.data_path = data_path
        self._cuts: dict[str, list[np.ndarray]] = {}
        self._train: dict[str, Samples] = {}
        self._test: dict[str, Samples] = {}

    def _load(self, data: Data, split: Literal["train", "test"]) -> Samples:
        return load(
            data.name,
            split,
            data_path=self.data_path,
            columns=data.columns,
            image_size=data.image_size,
        )

    @cached_property
    def public_rows(self) -> np.ndarray:
        data = self.scenario.public
        if data is None:
            raise UserError(f"scenario {self.scenario.name}: has no public data")
        samples = self._load(data, "train")
        rng = np.random.default_rng(seed_of("public"))
        rows = rng.permutation(_one_per(samples, data.one_per, rng))
        if data.size is not None and data.size > len(rows):
            raise UserError(f"public.size: {data.size} asked, {data.name} has {len(rows)} such rows")
        return np.sort(rows[: data.size])

    @cached_property
    def public(self) -> Samples:
        """The public samples, in the order that all parties share."""
        assert self.scenario.public is not None
        return self._load(self.scenario.public, "train").select(self.public_rows)

    @cached_property
    def public_hash(self) -> str:
        """SHA-256 over the public samples and their order; empty where there are none."""
        if self.scenario.public is None:
            return ""
        columns = [name for name in ("image", "text") if name in self.public]
        return digest(self.public, columns)

    @cached_property
    def server_test(self) -> Samples:
        """The test samples of the server's own task."""
        assert self.scenario.server is not None
        return self._held_out(self.scenario.server.test, "server.test")

    def train(self, name: str) -> Samples:
        """The private training samples of a participant."""
        if name not in self._train:
            entry = self.scenario.by_name[name]
            samples = self._load(entry.data, "train")
            for other, rows in zip(self.scenario.names(entry), self._cut(entry), strict=True):
                self._train[other] = samples.select(rows)
        return self._train[name]

    def test(self, name: str) -> Samples:
        """The test samples of a participant; under a natural partition those of its own id, unless test-on says all."""
        if name not in self._test:
            entry = self.scenario.by_name[name]
            data = entry.data
            samples = self._load(data, "test")
            rows = _labelled(samples, data)
            own_only = data.partition == "natural" and data.test_on == "own"
            if own_only and data.by is not None and data.by in samples:
                own = np.unique(np.asarray(self.train(name)[data.by]))
                mine = rows[np.isin(np.asarray(samples[data.by]), own)]
                rows = mine if len(mine) else rows
            self._test[name] = self._held_out(data, f"participants: {entry.name}: data", rows)
        return self._test[name]

    def num_classes(self, name: str) -> int:
        """Classes of a participant's label column; 0 where its task has none."""
        data = self.scenario.by_name[name].data
        return num_classes(self._load(data, "train"), data)

    def label_set(self, name: str) -> str:
        """A hash of the names of a participant's classes, by which others know that theirs are the same."""
        data = self.scenario.by_name[name].data
        names = self._load(data, "train").classes.get(data.label or "", [])
        return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16] if names else ""

    def _held_out(self, data: Data, where: str, rows: np.ndarray | None = None) -> Samples:
        samples = self._load(data, "test")
        rows = _labelled(samples, data) if rows is None else rows
        rng = np.random.default_rng(seed_of("test", where))
        rows = _one_per(samples, data.one_per, rng, rows)
        if data.test_size is not None:
            if data.test_size > len(rows):
                raise UserError(f"{where}.test-size: {data.test_size} asked, there are {len(rows)} test rows")
            rows = np.sort(rng.permutation(rows)[: data.test_size])
        return samples.select(rows)

    def _free(self, entry: Participant) -> np.ndarray:
        """Training rows that neither the public data nor an earlier entry of the same data set holds."""
        data = entry.data
        samples = self._load(data, "train")
        held = np.zeros(len(samples), dtype=bool)
        public = self.scenario.public
        if public is not None and self._source(public) == self._source(data):
            held[self.public_rows] = True
        for earlier in self.scenario.participants:
            if earlier.name == entry.name:
                break
            if self._source(earlier.data) == self._source(data):
                for rows in self._parts(self._alike(earlier)):
                    held[rows] = True
        if "picture" in samples:  # the other captions of a picture are held with it
            pictures = np.asarray(samples["picture"])
            held = np.isin(pictures, pictures[held])
        labelled = _labelled(samples, data)
        return labelled[~held[labelled]]

    def _source(self, data: Data) -> str:
        """What is the same for two names of one data set."""
        kind, _, rest = data.name.partition(":")
        if kind == "path":
            return os.path.realpath(os.path.join(self.data_path or "", os.path.expanduser(rest)))
        return ":".join(data.name.split(":")[:2])

    def _alike(self, entry: Participant) -> list[Participant]:
        """The entries with the same ``data``: one partition is dealt out to all of them, in the order of the file."""
        return [other for other in self.scenario.participants if other.data == entry.data]

    def _cut(self, entry: Participant) -> list[np.ndarray]:
        """The rows of each participant of an entry."""
        alike = self._alike(entry)
        start = sum(other.count for other in alike[: alike.index(entry)])
        return self._parts(alike)[start : start + entry.count]

    def _parts(self, alike: list[Participant]) -> list[np.ndarray]:
        """The rows of each participant of all entries with the same ``data``."""
        first = alike[0].name
        if first not in self._cuts:
            self._cuts[first] = self._partition(alike[0], sum(entry.count for entry in alike))
        return self._cuts[first]

    def _partition(self, entry: Participant, num: int) -> list[np.ndarray]:
        data = entry.data
        samples = self._load(data, "train")
        if data.partition == "own":
            own = _labelled(samples, data)
            if len(own) < data.min_size:
                raise UserError(
                    f"participants: {entry.name}: data: partition own has {len(own)} rows, fewer than min-size "
                    f"{data.min_size}"
                )
            return [own] * num
        rng = np.random.default_rng(seed_of(self.seed, entry.name))
        rows = _one_per(samples, data.one_per, rng, self._free(entry))
        groups = _by_picture(samples, rows)
        smallest, size = data.min_size, data.size
        try:
            parts = partition(
                samples,
                rows if groups is None else np.array(list(groups), dtype=np.int64),
                num,
                seed_of(self.seed, "partition", entry.name) % 2**32,
                data.partition,
                by=data.by or data.label,
                alpha=data.alpha,
                classes=data.classes,
                shards=data.shards,
                ids=data.ids,
                size=size if groups is None else None,
                min_size=smallest if groups is None else 1,
            )
        except UserError as error:
            raise UserError(f"participants: {entry.name}: data: {error}") from error
        if groups is None:
            return parts
        parts = [rng.permutation(np.concatenate([groups[first] for first in part]))[:size] for part in parts]
        for number, part in enumerate(parts):
            if len(part) < max(smallest, size or 0):
                raise UserError(
                    f"participants: {entry.name}: data: partition {number} has {len(part)} rows, fewer than size or "
                    "min-size asks"
                )
        return parts


def num_classes(samples: Samples, data: Data) -> int:
    """Classes of the label column; 0 where none is named."""
    return len(samples.classes.get(data.label, [])) if data.label is not None else 0


def _by_picture(samples: Samples, rows: np.ndarray) -> dict[int, np.ndarray] | None:
    """First row of each picture -> all of its rows, where pictures have several captions: they are dealt out whole."""
    if "picture" not in samples:
        return None
    pictures = np.asarray(samples["picture"])[rows]
    order = np.argsort(pictures, kind="stable")
    starts = np.flatnonzero(np.diff(pictures[order], prepend=-1))
    return {int(part[0]): part for part in np.split(rows[order], starts[1:]) if len(part)}


def _labelled(samples: Samples, data: Data) -> np.ndarray:
    """The rows that have the label column; all rows where none is named."""
    return np.arange(len(samples)) if data.label is None else samples.rows_with(data.label)


def _is_words(column: object) -> bool:
    return isinstance(column, list) and all(isinstance(value, str) for value in column[:1])


def _one_per(
    samples: Samples, column: str | None, rng: np.random.Generator, rows: np.ndarray | None = None
) -> np.ndarray:
    """One row drawn at random for each value of ``column``; all rows where no column is named."""
    rows = np.arange(len(samples)) if rows is None else rows
    if column is None:
        return rows
    if column not in samples:
        raise UserError(f"one-per: there is no column '{column}'")
    values = samples[column]
    if not (isinstance(values, np.ndarray) or _is_words(values)):
        raise UserError(f"one-per: column '{column}' has no single value in a row; take one such as concept")
    shuffled = rng.permutation(rows)
    _, first = np.unique(np.asarray(values)[shuffled], return_index=True)
    return np.sort(shuffled[first])


@lru_cache(maxsize=4)
def holdings(scenario: str, seed: int, data_path: str | None = None) -> Holdings:
    """The holdings of a dumped scenario, kept per process."""
    return Holdings(Scenario.parse(scenario), seed, data_path)
