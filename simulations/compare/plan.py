"""What is compared: the words of a comparison, read and checked."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedapps import checks
from fedapps.cli import parse_words, run_config
from fedapps.errors import UserError
from fedapps.hints import nearest
from fedapps.holdings import Holdings
from fedapps.settings import read
from simulations.compare.shapley import Coalition, coalitions, in_words, players

ALGO = re.compile(r"([^,\[\]]+)(?:\[([^\[\]]*)\])?")  # a method, and its own settings in brackets
NOT_HERE = {
    "algo": "a comparison has several; write algos=",
    "seed": "a comparison has several; write seeds=",
    "resume": "a comparison always goes on where it stopped; leave it out",
}
COMMON = {*NOT_HERE, "scenario", "num-server-rounds", "local-epochs", "data-path", "results-dir", "run-name"}


@dataclass(frozen=True, eq=False)
class Cell:
    """One method with one seed."""

    label: str
    seed: int
    folder: Path
    config: Mapping[str, Any]  # its run-config
    only: Coalition | None = None  # the types that train, where not all do

    def __str__(self) -> str:
        only = "" if self.only is None else f", train-only={in_words(self.only)}"
        return f"{self.label}, seed {self.seed}{only}"


@dataclass(frozen=True)
class Plan:
    """Methods by seeds; the cells of one seed share data and first weights."""

    algos: Mapping[str, Mapping[str, Any]]  # label -> run-config of the method
    seeds: Sequence[int]
    folder: Path
    threads: int
    rival: str | None = None
    target: float | None = None
    refused: Mapping[str, str] = field(default_factory=dict)  # label -> why the scenario does not suit the method
    types: tuple[str, ...] = ()  # that Shapley values are asked for

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells, seed by seed: what is done when a comparison is stopped can be compared."""
        return [self._cell(label, seed) for seed in self.seeds for label in self.algos if label not in self.refused]

    @cached_property
    def coalitions(self) -> list[Cell]:
        """Of each cell those in which some types alone train, or none."""
        some = coalitions(self.types)[:-1] if self.types else []
        return [self._cell(cell.label, cell.seed, only) for cell in self.cells for only in some]

    @property
    def runs(self) -> list[Cell]:
        """All that is to run."""
        return self.cells + self.coalitions

    @property
    def local(self) -> str | None:
        """The label that Δ% is against."""
        return next((label for label, config in self.algos.items() if config["algo"] == "local"), None)

    def _cell(self, label: str, seed: int, only: Coalition | None = None) -> Cell:
        name, trains = run_name(label, seed), {}
        if only is not None:
            trains = {"train-only": in_words(only)}
            name += f"-only-{in_words(only).replace('+', '_')}"
        where = {"results-dir": str(self.folder), "run-name": name}
        return Cell(label, seed, self.folder / name, {**self.algos[label], "seed": seed, **trains, **where}, only)


def run_name(label: str, seed: int) -> str:
    """``fedafd-baa-false-1`` for seed 1 of ``fedafd[fedafd.baa=false]``; ``1e+3`` becomes ``1e3``, not ``1e-3``."""
    short = label.replace(f"{label.partition('[')[0]}.", "").strip("]").replace("+", "")
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', short)}-{seed}"


def read_plan(words: Sequence[str]) -> Plan:
    """The comparison that some ``key=value`` words ask for; ``UserError`` for the first that makes none."""
    config = run_config(words)
    algos, seeds = parse_algos(str(config.pop("algos", ""))), parse_seeds(str(config.pop("seeds", "1,2,3")))
    rival, target = config.pop("rival", None), config.pop("target", None)
    if rival is not None and rival not in algos:
        raise UserError(f"rival: {rival} is not among algos{nearest(str(rival), algos)}")
    if target is not None and (type(target) not in (int, float) or not math.isfinite(target)):
        raise UserError(f"target: must be a number, not {target!r}")
    shapley = config.pop("shapley", False)
    if type(shapley) is not bool:
        raise UserError(f"shapley: must be true or false, not '{shapley}'")
    if shapley and any("train-only" in each for each in (config, *algos.values())):
        raise UserError("train-only: shapley=true has a run of each coalition of types; leave it out")
    for key in config:
        if key in NOT_HERE:
            raise UserError(f"{key}: {NOT_HERE[key]}")
        if "." in key:
            owner = key.partition(".")[0]
            raise UserError(f"{key}: is a key of one method; write it in brackets: algos={owner}[{key}=...]")
    settings, scenario = read(config)
    folder, name = Path(config.pop("results-dir")), config.pop("run-name", None)
    if name is None:
        name = hashlib.sha256(json.dumps([scenario.dump(), config], sort_keys=True).encode()).hexdigest()[:8]
    folder /= f"compare-{Path(settings.scenario).stem}-{name}"
    types = players(scenario) if shapley else ()
    methods = {label: config | own for label, own in algos.items()}
    return Plan(methods, seeds, folder, scenario.threads, rival, target, types=types)


def parse_algos(text: str) -> dict[str, dict[str, Any]]:
    """``local,fedafd[fedafd.baa=false]`` as label -> the settings that it has for itself, ``algo`` among them."""
    example = "local,fedafd[fedafd.baa=false]"
    if not re.fullmatch(rf"{ALGO.pattern}(,{ALGO.pattern})*", text):
        raise UserError(f"algos: must be methods with commas between, such as {example}; not '{text}'")
    found: dict[str, dict[str, Any]] = {}
    for match in ALGO.finditer(text):
        label, own = match[0].strip(), parse_words(match[2].split(",")) if match[2] else {}
        if key := next((key for key in own if key in COMMON), None):
            raise UserError(f"algos: {label}: {key} is one for the whole comparison; it cannot stand in brackets")
        if label in found:
            raise UserError(f"algos: {label} is there twice")
        if same := [other for other in found if run_name(other, 0) == run_name(label, 0)]:
            shared = run_name(label, 0).removesuffix("-0")
            raise UserError(
                f"algos: {same[0]} and {label} would share the run folders {shared}-SEED; "
                "make two comparisons of them, with a run-name each"
            )
        found[label] = {"algo": match[1].strip(), **own}
    return found


def parse_seeds(text: str) -> list[int]:
    """``1,2,3`` as numbers."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise UserError(f"seeds: must be whole numbers with commas between, such as 1,2,3; not '{text}'")
    seeds = [int(seed) for seed in text.split(",")]
    if len(set(seeds)) < len(seeds):
        raise UserError(f"seeds: one is there twice in {text}")
    return seeds


def unfit(plan: Plan) -> tuple[dict[str, str], dict[str, str]]:
    """Label -> first reason: of methods that the scenario does not suit, and of others with a setting that is wrong."""
    refused: dict[str, str] = {}
    wrong: dict[str, str] = {}
    looked: str | None = None  # the method with which participants' data and models are tried: they are all methods'
    for cell in plan.cells:
        try:
            settings, scenario = read(cell.config)
            if unmet := list(checks.unmet(settings.algo, scenario)):
                refused.setdefault(cell.label, unmet[0])
                continue
            looked = looked or cell.label
            holdings = Holdings(scenario, cell.seed, settings.data_path)
            checks.check(settings, scenario, holdings, private=cell.label == looked)
        except UserError as error:
            wrong.setdefault(cell.label, str(error))
    return refused, wrong
