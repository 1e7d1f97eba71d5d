"""A round in which nobody that was drawn may train (``train-only``): every method tests, and changes nothing."""

from pathlib import Path

import pytest

from fedapps.methods import METHODS
from simulations.in_process import run
from tests.end_to_end.flower import metrics
from tests.end_to_end.test_golden import scenario_of


@pytest.mark.parametrize("algo", METHODS)
def test_nobody_trains_and_all_are_tested(algo: str, tmp_path: Path) -> None:
    config = {"algo": algo, "scenario": scenario_of(algo), "results-dir": str(tmp_path), "seed": 1}
    got = metrics(run({**config, "run-name": "r", "num-server-rounds": 2, "train-only": "none"}))
    assert not [key for key, values in got.items() if key[1] == "train" and values]
    first, second = ({key[2]: got[key] for key in got if key[:2] == (r, "evaluate")} for r in (1, 2))
    assert len(first) >= 4 and first.keys() == second.keys()
    if algo not in (
        "fedafd",
        "fedmrl",
    ):  # FedAFD's server learns from public data; FedMRL draws an unused projector anew
        servers = ("server", "mean")  # Local's server does so too
        assert all(second[name] == values for name, values in first.items() if name not in servers)
