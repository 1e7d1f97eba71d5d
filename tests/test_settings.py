"""Run-configs: precedence, checks, and the line that each mistake gets."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedapps.errors import UserError
from fedapps.methods import METHODS
from fedapps.settings import Settings, keys, read

TINY = {"scenario": "emoji-tiny"}
MINIMAL = """
settings: {seed: 5, learning-rate: 1e-3, fedafd.beta: 0.25}
participants:
  - {name: a, modality: text, task: classification, model: bag, data: {name: glosses, label: label}}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    """A scenario file with settings of its own."""
    path = tmp_path / "own.yaml"
    path.write_text(MINIMAL)
    return str(path)


def test_run_config_wins_over_scenario_over_method(scenario: str) -> None:
    settings, _ = read({"scenario": scenario, "algo": "fedafd"})
    assert (settings.seed, settings.params.beta, settings.params.gamma) == (5, 0.25, 0.4)  # type: ignore[attr-defined]
    settings, _ = read({"scenario": scenario, "algo": "fedafd", "seed": 7, "fedafd.beta": 1, "fedafd.gamma": "auto"})
    assert (settings.seed, settings.params.beta, settings.params.gamma) == (7, 1.0, 0.4)  # type: ignore[attr-defined]


def test_numbers_that_yaml_reads_as_text(scenario: str) -> None:
    settings, parsed = read({"scenario": scenario, "algo": "local"})
    assert settings.learning_rate == 1e-3
    assert parsed.participants[0].train.learning_rate == 1e-3


def test_learning_rate_and_batch_size_reach_every_participant() -> None:
    _, parsed = read({**TINY, "learning-rate": 0.5, "batch-size": 7})
    assert {(entry.train.learning_rate, entry.train.batch_size) for entry in parsed.participants} == {(0.5, 7)}


def test_what_travels_comes_back() -> None:
    settings, _ = read({**TINY, "fedafd.order": "separate", "seed": 3})
    assert Settings.parse(settings.dump()) == settings
    assert settings.flat()["fedafd.order"] == "separate"


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"algo": "fedadf"}, "algo: there is no method 'fedadf' (did you mean 'fedafd'?)"),
        ({"algo": "zzz"}, f"algo: there is no method 'zzz' (known: {', '.join(sorted(METHODS))})"),
        ({"scenario": "emoji-tini"}, "scenario: there is no scenario 'emoji-tini' (did you mean 'emoji-tiny'?)"),
        ({"sed": 3}, "unknown key 'sed' (did you mean 'seed'?)"),
        ({"sed": "auto"}, "unknown key 'sed' (did you mean 'seed'?)"),
        ({"fedafd.betta": 0.1}, "unknown key 'fedafd.betta' (did you mean 'fedafd.beta'?)"),
        ({"seed": "one"}, "seed: must be a valid integer, not 'one'"),
        ({"seed": True}, "seed: must be a valid integer, not True"),
        ({"num-server-rounds": 1.5}, "num-server-rounds: must be a valid integer, not 1.5"),
        ({"num-server-rounds": 0}, "num-server-rounds: must be greater than or equal to 1, not 0"),
        ({"learning-rate": "fast"}, "learning-rate: must be a valid number, not 'fast'"),
        ({"learning-rate": float("nan")}, "learning-rate: must be a finite number, not nan"),
        ({"fraction-train": 1.5}, "fraction-train: must be less than or equal to 1, not 1.5"),
        ({"resume": "yes"}, "resume: must be a valid boolean, not 'yes'"),
        ({"device": "tpu"}, "device: must be 'auto', 'cpu' or 'cuda', not 'tpu'"),
        ({"fedafd.beta": -1}, "fedafd.beta: must be greater than or equal to 0, not -1.0"),
        ({"fedafd.order": "joined"}, "fedafd.order: must be 'joint' or 'separate', not 'joined'"),
        ({"algo": "local", "fedafd.beta": 0.1}, "fedafd.beta: is a key of fedafd, and algo is local"),
        (
            {"run-name": "../x"},
            (
                "run-name: must start with a letter or digit and hold only letters, digits, '.', '_' and '-', "
                "200 at most, not '../x'"
            ),
        ),
    ],
)
def test_mistakes(wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as error:
        read({**TINY, **wrong})
    assert str(error.value) == line


def test_mistakes_in_a_scenarios_settings_name_the_scenario(scenario: str) -> None:
    Path(scenario).write_text(MINIMAL.replace("seed: 5", "sede: 5"))
    with pytest.raises(UserError, match=r"scenario own: settings: unknown key 'sede' \(did you mean 'seed'\?\)"):
        read({"scenario": scenario})
    Path(scenario).write_text(MINIMAL.replace("seed: 5", "seed: -5"))
    with pytest.raises(UserError, match=r"scenario own: settings: seed: must be greater than or equal to 0, not -5"):
        read({"scenario": scenario})
    assert read({"scenario": scenario, "seed": 2})[0].seed == 2  # the run-config wins before it can hurt


def test_pyproject_names_every_key() -> None:
    """Flower accepts the keys that stand there, and no others."""
    file = Path(__file__).parents[1] / "pyproject.toml"
    config = tomllib.loads(file.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    flat = {key: value for key, value in config.items() if not isinstance(value, dict)}
    for table, values in config.items():
        if isinstance(values, dict):
            flat |= {f"{table}.{key}": value for key, value in values.items()}
    assert flat == {**dict.fromkeys(keys(), "auto"), "algo": "fedafd", "scenario": "emoji-quick"}
