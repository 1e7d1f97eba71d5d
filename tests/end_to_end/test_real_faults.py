"""Faults in real Flower processes: a process of Ray that dies, a straggler, two runs at once, no HOME."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedapps.results.folder import read_rows
from simulations.in_process import run
from tests.end_to_end.flower import Flower, metrics

SCENARIO = """
description: two participants with an encoder that ends its process while there is a file of the name that it is given
dim: 16
participants:
  - name: image
    count: 2
    modality: image
    task: classification
    model: {name: "fuse:build", file: FILE}
    data: {name: emoji, label: group, size: 40, test-size: 40}
"""
FUSE = """
import os
from fedapps.models import build_encoder

def build(dim, file):
    encoder = build_encoder("image", "cnn", dim, width=4)
    plain = encoder.encode
    encoder.encode = lambda x: os._exit(1) if os.path.exists(file) else plain(x)
    return encoder
"""


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[Flower]:
    flower = Flower(tmp_path / "home")
    yield flower
    flower.stop()


@pytest.mark.slow
def test_a_dead_ray_process_ends_the_run_which_can_go_on(
    flower: Flower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuse, scenario = tmp_path / "fuse", tmp_path / "scenario.yaml"
    (tmp_path / "fuse.py").write_text(FUSE)
    scenario.write_text(SCENARIO.replace("FILE", str(fuse)))
    flower.env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    where = [f"scenario={scenario}", f"results-dir={tmp_path}", "run-name=r"]
    driver = flower.start("driver", "fedapps", "run", "algo=local", "num-server-rounds=200", "seed=1", *where)
    rows, deadline = tmp_path / "r" / "metrics.jsonl", time.monotonic() + 120
    while not rows.is_file() or '"round": 2' not in rows.read_text():
        assert time.monotonic() < deadline and driver.poll() is None, (flower.home / "driver.log").read_text()
        time.sleep(0.1)
    fuse.touch()
    assert driver.wait(120) == 1
    about = json.loads((tmp_path / "r" / "run.json").read_text())
    assert about["status"] == "failed" and about["reason"].startswith("a process of the simulation died")
    fuse.unlink()
    done = max(row[0] for row in metrics(tmp_path / "r"))
    words = ["algo=local", f"num-server-rounds={done + 2}", "seed=1", "resume=true", *where]
    again = flower.call("fedapps", "run", *words)
    assert again.returncode == 0, again.stdout + again.stderr
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {"algo": "local", "scenario": str(scenario), "seed": 1, "num-server-rounds": done + 2}
    whole = run({**config, "results-dir": str(tmp_path), "run-name": "whole"})
    assert metrics(tmp_path / "r") == metrics(whole)


RAISING = FUSE.replace("os._exit(1)", "1 / 0")


@pytest.mark.slow
def test_participants_that_raise_in_ray_are_told_at_once(flower: Flower, tmp_path: Path) -> None:
    """Every one of them: the round is skipped, and after three of these the run ends, with the reason."""
    fuse, scenario = tmp_path / "fuse", tmp_path / "scenario.yaml"
    (tmp_path / "fuse.py").write_text(RAISING)
    scenario.write_text(SCENARIO.replace("FILE", str(fuse)))
    fuse.touch()
    flower.env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = flower.call("fedapps", "run", "algo=local", f"scenario={scenario}", f"results-dir={tmp_path}", "run-name=r")
    assert done.returncode == 1, done.stdout + done.stderr
    reason = json.loads((tmp_path / "r" / "run.json").read_text())["reason"]
    assert reason.startswith("round 3, train: 0 good replies") and "image-0: ZeroDivisionError" in reason


STRAGGLER = """
description: two participants, of whom one has an encoder that sleeps while there is a file of the name that it is given
dim: 16
participants:
  - &image
    name: image
    modality: image
    task: classification
    model: {name: cnn, width: 4}
    data: {name: emoji, label: group, size: 40, test-size: 40}
  - {<<: *image, name: late, model: {name: "sleeper:build", file: FILE}}
"""
SLEEPER = """
import os, time
from fedapps.models import build_encoder

def build(dim, file):
    encoder = build_encoder("image", "cnn", dim, width=4)
    plain = encoder.encode

    def encode(x):
        while os.path.exists(file):
            time.sleep(0.1)
        return plain(x)

    encoder.encode = encode
    return encoder
"""


@pytest.mark.slow
def test_a_straggler_is_left_out_and_comes_back(flower: Flower, tmp_path: Path) -> None:
    """The round ends by round-timeout; what it sends after that is not read, and it goes on from its own state."""
    slow, scenario = tmp_path / "slow", tmp_path / "scenario.yaml"
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    scenario.write_text(STRAGGLER.replace("FILE", str(slow)))
    flower.env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    words = ["algo=local", f"scenario={scenario}", "seed=1", "num-server-rounds=12", "round-timeout=25"]
    driver = flower.start("driver", "fedapps", "run", *words, f"results-dir={tmp_path}", "run-name=r")
    rows, deadline = tmp_path / "r" / "metrics.jsonl", time.monotonic() + 120
    while not rows.is_file() or '"round": 2' not in rows.read_text():
        assert time.monotonic() < deadline and driver.poll() is None, (flower.home / "driver.log").read_text()
        time.sleep(0.05)
    slow.touch()
    while "no reply within 25 s" not in rows.read_text():
        assert time.monotonic() < deadline and driver.poll() is None, (flower.home / "driver.log").read_text()
        time.sleep(0.05)
    slow.unlink()
    assert driver.wait(120) == 0
    found = [row for row in read_rows(rows) if row["phase"] == "train"]
    out = {row["round"] for row in found if "error" in row}
    assert out and {row["participant"] for row in found if "error" in row} == {"late-0"}
    trained = {who: {row["round"] for row in found if row["participant"] == who and "error" not in row} for who in PAIR}
    assert trained["image-0"] == set(range(1, 13)) and trained["late-0"] == set(range(1, 13)) - out
    assert max(trained["late-0"]) > max(out), "it came back"
    assert not [row for row in read_rows(rows) if "note" in row], "with its own state"


PAIR = ("image-0", "late-0")


@pytest.mark.slow
def test_two_runs_at_once_on_one_machine(flower: Flower, tmp_path: Path) -> None:
    """They share a SuperLink and Ray's processors, and have the metrics of runs alone; one name is for one run."""
    words = ["scenario=emoji-tiny", "num-server-rounds=6", f"results-dir={tmp_path}"]
    one = flower.start("one", "fedapps", "run", "algo=fedafd", "seed=1", "run-name=one", *words)
    two = flower.start("two", "fedapps", "run", "algo=local", "seed=2", "run-name=two", *words)
    deadline = time.monotonic() + 120
    while not (tmp_path / "one" / "run.json").is_file():
        assert time.monotonic() < deadline and one.poll() is None, (flower.home / "one.log").read_text()
        time.sleep(0.1)
    same = flower.call("fedapps", "run", "algo=fedafd", "seed=1", "run-name=one", *words)
    assert same.returncode == 2 and "one exists already" in same.stderr
    again = flower.call("fedapps", "run", "resume=true", "run-name=one", f"results-dir={tmp_path}")
    if one.poll() is None:
        assert again.returncode == 2 and "this run is still going on" in again.stderr
    logs = [(flower.home / f"{name}.log").read_text() for name in ("one", "two")]
    assert [one.wait(120), two.wait(120)] == [0, 0], logs
    for name, algo, seed in (("one", "fedafd", 1), ("two", "local", 2)):
        config = {"algo": algo, "scenario": "emoji-tiny", "seed": seed, "num-server-rounds": 6}
        alone = run({**config, "results-dir": str(tmp_path / "alone"), "run-name": name})
        assert metrics(tmp_path / name) == metrics(alone)


@pytest.mark.slow
def test_a_home_that_cannot_be_written_is_said_with_what_helps(flower: Flower, tmp_path: Path) -> None:
    flower.env["HOME"] = "/proc/no"
    words = ["algo=local", "scenario=emoji-tiny", "run-name=r", "num-server-rounds=1"]
    done = flower.call("fedapps", "run", *words, f"results-dir={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    del flower.env["FLWR_HOME"]
    done = flower.call("fedapps", "run", *words, f"results-dir={tmp_path / 'other'}")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == (
        "error: FLWR_HOME: /proc/no/.flwr cannot be written: No such file or directory; name another with "
        "FLWR_HOME=<folder> in the environment"
    )
