"""The wire contract of a method in a scenario, as both sides check it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from flwr.app import ArrayRecord
from torch import nn

from fedapps import wire
from fedapps.holdings import holdings
from fedapps.learner import build_encoders
from fedapps.methods import Exchange
from fedapps.scenario import Scenario
from fedapps.tasks import METRICS
from fedapps.wire import Layout, WireError, layout_of

TESTS = METRICS | {f"{control}_{name}" for control in ("local", "global") for name in METRICS}
"""Names of test metrics: of the model, and of the controls that stand beside it."""


@lru_cache(maxsize=8)
def sizes(scenario: str, data_path: str | None = None) -> dict[str, int]:
    """``P`` public samples and ``d`` dimensions of a dumped scenario."""
    parsed = Scenario.parse(scenario)
    found = {"d": parsed.dim}
    if parsed.public is not None:
        found["P"] = len(holdings(scenario, 0, data_path).public_rows)
    return found


@lru_cache(maxsize=8)
def known_layouts(scenario: str) -> dict[str, Layout]:
    """Layouts of state dicts by name: ``server encoder`` is the encoders of the server's model."""
    server = Scenario.parse(scenario).server
    if server is None:
        return {}
    encoders = build_encoders(server, Scenario.parse(scenario).dim)
    return {"server encoder": layout_of(nn.ModuleDict(encoders).state_dict())}


def check_down(exchange: Exchange, records: Mapping[str, Any], scenario: str, data_path: str | None) -> None:
    """Raise ``WireError`` if a participant may not be sent these records."""
    for record, value in records.items():
        if not isinstance(value, ArrayRecord):
            raise WireError(f"record '{record}' may not cross")
    wire.check_arrays(records, exchange.down, sizes(scenario, data_path), known_layouts(scenario))


def check_up(
    exchange: Exchange, records: Mapping[str, Any], scenario: str, data_path: str | None, modalities: tuple[str, ...]
) -> dict[str, ArrayRecord]:
    """The array records of a reply; ``WireError`` if anything in it may not leave the site or is missing."""
    arrays = {record: value for record, value in records.items() if isinstance(value, ArrayRecord)}
    for record in records:
        if record not in arrays and record not in (wire.METRICS, wire.EVALUATE):
            raise WireError(f"record '{record}' may not cross")
    wire.check_arrays(arrays, exchange.up, sizes(scenario, data_path), known_layouts(scenario), modalities)
    wire.check_metrics(records.get(wire.METRICS), exchange.metrics, ("num-examples", "seconds"))
    if wire.EVALUATE in records:
        wire.check_metrics(records[wire.EVALUATE], TESTS)
    return arrays
