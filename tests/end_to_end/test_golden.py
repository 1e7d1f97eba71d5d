"""Golden metrics: the numbers of each method on the tiny scenario, so that no change alters them unnoticed.

For a new method, or after a change that is meant to alter them: ``python -m tests.end_to_end.test_golden METHOD …``
writes those of the methods that it names.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fedapps.checks import unmet
from fedapps.methods import METHODS
from fedapps.scenario import load_scenario
from simulations.in_process import run
from tests.end_to_end.flower import ROOT, metrics

GOLDEN = Path(__file__).with_name("golden.json")
TOLERANCE = 5e-4
MEANT_FOR = {"fedavg": "mrl-same-tiny", "fedprox": "cola-tiny"}  # where the first that they can run is not the one


def scenario_of(algo: str) -> str:
    """The tiny scenario that the method is for, or the first it can run."""
    return MEANT_FOR.get(algo) or next(
        name
        for name in ("emoji-tiny", "mrl-tiny", "mrl-same-tiny", "muscle-tiny", "cola-tiny")
        if not list(unmet(algo, load_scenario(name)))
    )


def result(algo: str, folder: Path) -> dict[str, dict[str, float]]:
    """``round/phase/participant`` -> metrics, on the method's tiny scenario."""
    path = run({"algo": algo, "scenario": scenario_of(algo), "results-dir": str(folder), "run-name": algo, "seed": 1})
    return {"/".join(map(str, key)): values for key, values in metrics(path).items()}


@pytest.mark.parametrize("algo", METHODS)
def test_golden(algo: str, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text())[algo]
    got = result(algo, tmp_path)
    assert got.keys() == golden.keys()
    for key, values in golden.items():
        assert got[key] == pytest.approx(values, rel=0, abs=TOLERANCE), key


def test_metrics_do_not_depend_on_hash_seed_or_threads_of_the_environment(tmp_path: Path) -> None:
    """Sets of strings are in another order for each PYTHONHASHSEED; nothing drawn may follow that order."""
    program = f"from tests.end_to_end.test_golden import *; print(result('fedafd', Path({str(tmp_path)!r}) / SEED))"
    found = set()
    for seed, threads in (("0", "1"), ("1", "2")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads}
        words = [sys.executable, "-c", program.replace("SEED", repr(seed))]
        found.add(subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        new = {algo: result(algo, Path(folder)) for algo in sys.argv[1:]}
    GOLDEN.write_text(json.dumps(json.loads(GOLDEN.read_text()) | new, indent=1) + "\n")
