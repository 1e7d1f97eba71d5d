"""The wire contract of a method in a scenario, as both sides check it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flwr.app import ArrayRecord
from torch import Tensor, nn

from fedapps import wire
from fedapps.holdings import holdings
from fedapps.learner import build_encoders, build_shared
from fedapps.methods import Params, method
from fedapps.models import Model
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

    def down(self, phase: str, records: Mapping[str, Any]) -> None:
        """Raise ``WireError`` if the participant may not be sent these records."""
        exchange = method(Settings.parse(self.settings).algo).wire[phase]
        for record, value in records.items():
            if not isinstance(value, ArrayRecord):
                raise WireError(f"record '{record}' may not cross")
        wire.check_arrays(records, exchange.down, sizes(self.scenario, self.data_path), self.layouts())

    def up(self, phase: str, records: Mapping[str, Any]) -> dict[str, ArrayRecord]:
        """The array records of a reply; ``WireError`` if anything in it may not leave the site or is missing."""
        entry = method(Settings.parse(self.settings).algo)
        exchange = entry.wire[phase]
        arrays = {record: value for record, value in records.items() if isinstance(value, ArrayRecord)}
        for record in records:
            if record not in arrays and record not in (wire.METRICS, wire.EVALUATE):
                raise WireError(f"record '{record}' may not cross")
        modalities = Scenario.parse(self.scenario).by_name[self.name].modalities
        wire.check_arrays(arrays, exchange.up, sizes(self.scenario, self.data_path), self.layouts(), modalities)
        wire.check_metrics(records.get(wire.METRICS), exchange.metrics, ("num-examples", "seconds"))
        if wire.EVALUATE in records:
            tests = METRICS | {f"{control}_{name}" for control in entry.controls for name in METRICS}
            wire.check_metrics(records[wire.EVALUATE], tests)
        return arrays

    def layouts(self) -> dict[str, Layout]:
        """Layouts of state dicts by name."""
        modality = Scenario.parse(self.scenario).by_name[self.name].modalities[0]
        return server_layouts(self.scenario) | shared_layouts(self.settings, self.scenario, modality, self.classes)


@lru_cache(maxsize=8)
def sizes(scenario: str, data_path: str | None = None) -> dict[str, int]:
    """``P`` public samples and ``d`` dimensions of a dumped scenario."""
    parsed = Scenario.parse(scenario)
    found = {"d": parsed.dim}
    if parsed.public is not None:
        found["P"] = len(holdings(scenario, 0, data_path).public_rows)
    return found


@lru_cache(maxsize=8)
def server_layouts(scenario: str) -> dict[str, Layout]:
    """``server encoder``: the encoders of the server's model."""
    server = Scenario.parse(scenario).server
    if server is None:
        return {}
    encoders = build_encoders(server, Scenario.parse(scenario).dim)
    return {"server encoder": layout_of(nn.ModuleDict(encoders).state_dict())}


@lru_cache(maxsize=32)
def shared_layouts(settings: str, scenario: str, modality: str, classes: int) -> dict[str, Layout]:
    """``shared model``: what participants of one modality and label set share, as far as it travels."""
    parsed, params = Scenario.parse(scenario), Settings.parse(settings).params
    if not classes or modality not in parsed.shared:
        return {}
    model = build_shared(parsed, modality, params.shared_dim(parsed.dim), classes, 0)
    return {"shared model": layout_of(travelling(model, params))}


def travelling(model: Model, params: Params) -> dict[str, Tensor]:
    """The part of a shared model's state dict that travels: all of it, or all but the head."""
    state = model.state_dict()
    return state if params.shares_head else {k: v for k, v in state.items() if not k.startswith("head.")}
