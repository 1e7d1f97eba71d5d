"""The numbers behind the symbols of the wire contract, which both sides work out from the scenario."""

from __future__ import annotations

from functools import lru_cache

from fedapps.holdings import holdings
from fedapps.learner import build_learner
from fedapps.scenario import Scenario
from fedapps.wire import Layout, layout_of


@lru_cache(maxsize=8)
def sizes(scenario: str, data_path: str | None = None) -> dict[str, int]:
    """``P`` public samples and ``d`` dimensions of a dumped scenario."""
    parsed = Scenario.parse(scenario)
    found = {"d": parsed.dim}
    if parsed.public is not None:
        found["P"] = len(holdings(scenario, 0, data_path).public_rows)
    return found


@lru_cache(maxsize=8)
def known_layouts(scenario: str, data_path: str | None = None) -> dict[str, Layout]:
    """Layouts of state dicts by name: ``server encoder`` is the encoders of the server's model."""
    parsed = Scenario.parse(scenario)
    if parsed.server is None or parsed.public is None:
        return {}
    samples = holdings(scenario, 0, data_path).server_test
    model, _ = build_learner(parsed.server, parsed.dim, samples, parsed.server.test, 0, "server")
    return {"server encoder": layout_of(model.encoders.state_dict())}
