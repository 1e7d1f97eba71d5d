"""The wire contract of a method in a scenario, as both sides check it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from flwr.app import ArrayRecord
from torch import Tensor, nn

from fedapps import wire
from fedapps.holdings import holdings
from fedapps.learner import build_encoders, build_learner, build_shared
from fedapps.methods import FedColaParams, Method, Params, Record, method
from fedapps.models import Model
from fedapps.models.unified import linears
from fedapps.scenario import Scenario
from fedapps.settings import Settings
from fedapps.tasks import METRICS
from fedapps.wire import Layout, WireError, layout_of


@dataclass(frozen=True)
class Contract:
    """What may cross between the server and one participant.

    ``settings`` and ``scenario`` are dumped ones; ``classes`` is the number of classes of the participant's task
    (0 where it has none).
    """

    settings: str
    scenario: str
    data_path: str | None
    name: str
    classes: int

    @property
    def method(self) -> Method:
        return method(Settings.parse(self.settings).algo)

    @property
    def sizes(self) -> dict[str, int]:
        """``P`` public samples, ``d`` dimensions, ``C`` classes, and the method's own symbols."""
        found = sizes(self.scenario, self.data_path) | {"C": self.classes}
        return found | Settings.parse(self.settings).params.sizes(found.get("P", 0))

    def down(self, phase: str, records: Mapping[str, Any]) -> None:
        """Raise ``WireError`` if the participant may not be sent these records."""
        allowed = self.method.wire[phase].down
        for record, value in records.items():
            if not isinstance(value, ArrayRecord):
                raise WireError(f"record '{record}' may not cross")
        wire.check_arrays(records, allowed, self.sizes, self.layouts(allowed))

    def up(self, phase: str, records: Mapping[str, Any]) -> dict[str, ArrayRecord]:
        """The array records of a reply; ``WireError`` if anything in it may not leave the site or is missing."""
        entry = self.method
        exchange = entry.wire[phase]
        arrays = {record: value for record, value in records.items() if isinstance(value, ArrayRecord)}
        for record in records:
            if record not in arrays and record not in (wire.METRICS, wire.EVALUATE):
                raise WireError(f"record '{record}' may not cross")
        modalities = Scenario.parse(self.scenario).by_name[self.name].modalities
        wire.check_arrays(arrays, exchange.up, self.sizes, self.layouts(exchange.up), modalities)
        wire.check_metrics(records.get(wire.METRICS), (*exchange.metrics, *wire.STATE), ("num-examples", "seconds"))
        if wire.EVALUATE not in records and phase == "evaluate":
            raise WireError("record 'evaluate' is missing")
        if wire.EVALUATE in records:
            if not exchange.tests and phase != "evaluate":
                raise WireError("record 'evaluate' may not cross: the participant is tested later in the round")
            tests = METRICS | {f"{control}_{name}" for control in entry.controls for name in METRICS}
            wire.check_metrics(records[wire.EVALUATE], tests, ("num-examples", "seconds"))
        return arrays

    def layouts(self, records: Mapping[str, Record]) -> dict[str, Layout]:
        """The layouts of the state dicts that ``records`` name: the same for all participants of an entry."""
        scenario = Scenario.parse(self.scenario)
        like = replace(self, name=scenario.names(scenario.by_name[self.name])[0])
        return {spec: layout(spec, like) for spec in records.values() if isinstance(spec, str)}


@lru_cache(maxsize=8)
def sizes(scenario: str, data_path: str | None = None) -> dict[str, int]:
    """``P`` public samples and ``d`` dimensions of a dumped scenario."""
    parsed = Scenario.parse(scenario)
    found = {"d": parsed.dim}
    if parsed.public is not None:
        found["P"] = len(holdings(scenario, 0, data_path).public_rows)
    return found


@lru_cache(maxsize=256)
def layout(spec: str, contract: Contract) -> Layout:
    """The layout of a state dict, or of another record that symbols do not tell, by name.

    ``server encoder``: the encoders of the server's model; ``shared model``: the small one that participants of one
    modality and label set share, as far as it travels; ``own model``: the participant's own, encoder and head.
    """
    scenario = Scenario.parse(contract.scenario)
    party = scenario.by_name[contract.name]
    match spec.removeprefix(wire.LOW_RANK):
        case "server encoder" if scenario.server is not None:
            return layout_of(nn.ModuleDict(build_encoders(scenario.server, scenario.dim)).state_dict())
        case "shared model":
            params = Settings.parse(contract.settings).params
            dim = params.shared_dim(scenario.dim)
            model = build_shared(scenario, party.modalities[0], dim, contract.classes, 0)
            return layout_of(travelling(model, params))
        case "public rows":  # their numbers
            return {"rows": ("int64", (contract.sizes["K"],))}
        case "representations":  # of the public rows that they name
            return {"rows": ("int64", (contract.sizes["K"],)), "z": ("float32", _shape(contract, "K d"))}
        case "others":  # representations of M others, or of fewer
            return {str(m): ("float32", _shape(contract, "K d")) for m in range(contract.sizes["M"])}
        case "tuples":  # of M others, or of fewer, for each of K / B steps
            B, K, d = (contract.sizes[symbol] for symbol in "BKd")
            tuples = {m: K // B * B**m for m in range(1, contract.sizes["M"] + 1)}
            shapes = {f"S-{m}": (n, d) for m, n in tuples.items()} | {f"log-alpha-{m}": (n,) for m, n in tuples.items()}
            return {name: ("float32", shape) for name, shape in shapes.items()}
        case "pseudo-labels":  # of all public samples, for tasks whose labels are of whole samples
            symbols = {"classification": "P", "multilabel": "P C"}.get(party.task.name)
            return {} if symbols is None else {"labels": ("int64", _shape(contract, symbols))}
        case "own model":
            return layout_of(build_learner(party, scenario.dim, contract.classes, 0)[0].state_dict())
        case "auxiliary hashes":  # of those weights
            return dict.fromkeys(layout("auxiliary weights", contract), ("uint8", (32,)))
        case "auxiliary weights":  # of linear layers, of the shapes of the own ones; for one modality only
            params = Settings.parse(contract.settings).params
            assert isinstance(params, FedColaParams)
            if len(party.modalities) > 1:
                return {}
            model = build_learner(party, scenario.dim, contract.classes, 0)[0]
            layers = linears(model.encoders[party.modalities[0]], params.aux)
            return layout_of({name: layer.weight for name, layer in layers.items()})
    raise WireError(f"scenario {scenario.name} has no {spec}")


def _shape(contract: Contract, symbols: str) -> tuple[int, ...]:
    return tuple(contract.sizes[symbol] for symbol in symbols.split())


def travelling(model: Model, params: Params) -> dict[str, Tensor]:
    """The part of a shared model's state dict that travels: all of it, or all but the head."""
    state = model.state_dict()
    return state if params.shares_head else {k: v for k, v in state.items() if not k.startswith("head.")}
