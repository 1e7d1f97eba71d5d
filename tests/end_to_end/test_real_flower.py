"""Whole runs in real Flower processes: Ray simulation by ``flwr run``, and SuperLink with SuperNodes on loopback."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulations.in_process import run
from tests.end_to_end.flower import ROOT, Flower, free_ports, metrics, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[Flower]:
    made = Flower(tmp_path / "flwr-home")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The metrics that every other way of running must give."""
    folder = tmp_path_factory.mktemp("in-process")
    return metrics(run({"scenario": "emoji-tiny", "results-dir": str(folder), "run-name": "r", "seed": 1}))


def run_config(folder: Path, name: str) -> str:
    return f'algo="fedafd" scenario="emoji-tiny" seed=1 results-dir="{folder}" run-name="{name}"'


def test_flwr_run_with_flowers_defaults(flower: Flower, in_process: dict, tmp_path: Path) -> None:
    """The raw command, two SuperNodes with Flower's default resources; then one and three SuperNodes."""
    for name, federation in (("two", None), ("one", "num-supernodes=1"), ("three", "num-supernodes=3")):
        extra = ["--federation-config", f"{federation} client-resources-num-cpus=1"] if federation else []
        done = flower.call("flwr", "run", str(ROOT), "--run-config", run_config(tmp_path, name), "--stream", *extra)
        assert (tmp_path / name / "run.json").is_file(), done.stdout + done.stderr
        assert json.loads((tmp_path / name / "run.json").read_text())["status"] == "finished", done.stdout
        assert metrics(tmp_path / name) == in_process
        assert (tmp_path / name / "summary.json").is_file()
        assert "No additional application dependencies needed installation" in done.stdout


def test_fedapps_run_reports_and_exits_truly(flower: Flower, in_process: dict, tmp_path: Path) -> None:
    words = ["algo=fedafd", "scenario=emoji-tiny", "seed=1", "run-name=r"]
    done = flower.call("fedapps", "run", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "runs" / "r"
    lines = done.stdout.strip().splitlines()
    assert str(folder) in lines[0] and str(folder) in lines[-1]
    assert metrics(folder) == in_process
    again = flower.call("fedapps", "run", *words, cwd=tmp_path)
    assert again.returncode == 2 and "exists already" in again.stderr
    broken = flower.call(
        "fedapps", "run", "algo=local", "scenario=emoji-tiny", "run-name=short", "round-timeout=0.001", cwd=tmp_path
    )
    assert broken.returncode == 1, broken.stdout + broken.stderr
    about = json.loads((tmp_path / "runs" / "short" / "run.json").read_text())
    assert about["status"] == "failed" and "no node hosts" in about["reason"]


def test_superlink_and_two_supernodes(flower: Flower, in_process: dict, tmp_path: Path) -> None:
    """Participants named in ``--node-config``, personal state in each node's own folder."""
    port, *node_ports = free_ports(3)
    address = f"127.0.0.1:{port}"
    link = ["--insecure", "--host", "127.0.0.1", "--port", str(port), "--disable-runtime-dependency-installation"]
    flower.start("superlink", "flower-superlink", *link)
    wait_for(f"http://{address}/health")
    for i, names in enumerate(("image-0 mm-1", "text-0 mm-0")):
        node = ["--insecure", "--superlink", address, "--host", "127.0.0.1", "--port", str(node_ports[i])]
        config = f'participant="{names}" state-dir="{tmp_path / f"state-{i}"}"'
        flower.start(f"supernode-{i}", "flower-supernode", *node, "--node-config", config)
    link_config = f'[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "{address}"\ninsecure = true\n'
    (flower.home / "config.toml").write_text(link_config)
    done = flower.call("flwr", "run", str(ROOT), "lab", "--run-config", run_config(tmp_path, "deployed"), "--stream")
    logs = "\n".join((flower.home / f"{name}.log").read_text() for name in ("superlink", "supernode-0", "supernode-1"))
    assert (tmp_path / "deployed" / "run.json").is_file(), done.stdout + done.stderr + logs
    assert json.loads((tmp_path / "deployed" / "run.json").read_text())["status"] == "finished", done.stdout + logs
    assert metrics(tmp_path / "deployed") == in_process
    assert sorted(os.listdir(tmp_path / "state-0" / "deployed")) == ["image-0", "mm-1"]
    assert not (tmp_path / "deployed" / "state").exists()


def test_a_killed_run_is_resumed(flower: Flower, tmp_path: Path) -> None:
    """kill -9 of the process that runs ServerApp and simulation; the resumed metrics are those of a whole run."""
    words = ["algo=fedafd", "scenario=emoji-tiny", "seed=1", "num-server-rounds=40", "run-name=killed"]
    driver = flower.start("driver", "fedapps", "run", *words, f"results-dir={tmp_path}")
    rows = tmp_path / "killed" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not rows.is_file() or '"round": 5' not in rows.read_text():
        assert time.monotonic() < deadline and driver.poll() is None, (flower.home / "driver.log").read_text()
        time.sleep(0.1)
    flower.kill("flwr-simulation")
    assert driver.wait(120) == 1
    assert json.loads((tmp_path / "killed" / "run.json").read_text())["status"] == "running"
    done = flower.call("fedapps", "run", "resume=true", "run-name=killed", f"results-dir={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    config = {"algo": "fedafd", "scenario": "emoji-tiny", "seed": 1, "num-server-rounds": 40}
    whole = run({**config, "results-dir": str(tmp_path), "run-name": "whole"})
    assert metrics(tmp_path / "killed") == metrics(whole)
