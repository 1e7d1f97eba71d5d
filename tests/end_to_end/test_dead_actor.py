"""A process of Ray that dies in the middle of a round, as for want of memory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

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
