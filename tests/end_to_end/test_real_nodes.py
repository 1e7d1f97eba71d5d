"""Real nodes: ten of them from the first round on, one that cannot load the app, one that is killed and comes back."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from fedapps.results.folder import read_rows
from tests.end_to_end.flower import ROOT, Flower, free_ports, wait_for
from tests.end_to_end.test_real_faults import SLEEPER

pytestmark = pytest.mark.slow

TEN = """
description: ten participants with twenty pictures each
dim: 8
participants:
  - name: image
    count: 10
    modality: image
    task: classification
    model: {name: cnn, width: 4}
    data: {name: emoji, label: group, size: 20, test-size: 20}
"""


def until(file: Path, words: str, seconds: float, told: Callable[[], str] = str) -> None:
    """Wait until a file that grows has some words."""
    end = time.monotonic() + seconds
    while not file.is_file() or words not in file.read_text():
        assert time.monotonic() < end, f"no {words!r} in {file.name}: {told()}"
        time.sleep(0.05)


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[Flower]:
    flower = Flower(tmp_path / "home")
    yield flower
    flower.stop()


@pytest.mark.parametrize("names", [("a", "b", "c"), ("d", "e")])
def test_ten_nodes_train_in_the_first_round(names: tuple[str, ...], flower: Flower, tmp_path: Path) -> None:
    """Five times: Flower gives each run ten new nodes, which register while the ServerApp is asking for them. Runs are
    at work at once, and so on crowded processors; each has one process of Ray."""
    (tmp_path / "ten.yaml").write_text(TEN)
    flower.env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
    config = f'algo="fedavg" scenario="{tmp_path}/ten.yaml" num-server-rounds=1 results-dir="{tmp_path}"'
    nodes = ["--federation-config", "num-supernodes=10 client-resources-num-cpus=1 init-args-num-cpus=1", "--stream"]
    runs = {}
    for name in names:
        runs[name] = flower.start(name, "flwr", "run", str(ROOT), "--run-config", f'{config} run-name="{name}"', *nodes)
        until(flower.home / f"{name}.log", "Successfully started", 60)
    for name, driver in runs.items():
        driver.wait(400)
        log = (flower.home / f"{name}.log").read_text()
        assert "10 participants on 10 nodes" in log, log
        rows = [row for row in read_rows(tmp_path / name / "metrics.jsonl") if row["round"] == 1]
        assert not [row for row in rows if "error" in row]
        trained = {row["participant"] for row in rows if row["phase"] == "train"}
        assert trained == {f"image-{i}" for i in range(10)} | {"mean"}


PAIR = """
description: two participants, one a node
dim: 8
participants:
  - &image
    name: steady
    modality: image
    task: classification
    model: {name: cnn, width: 4}
    data: {name: emoji, label: group, size: 20, test-size: 20}
  - {<<: *image, name: other, model: {name: cnn, width: 6}}
"""
BROKEN = """
import os, sys

class Broken:
    def find_spec(self, name, path=None, target=None):
        program = open("/proc/self/cmdline").read()
        if name == "fedapps.client_app" and os.environ.get("BROKEN", "not set") in program:
            raise ImportError("libnone.so: cannot open shared object file")

sys.meta_path.insert(0, Broken())
"""
WHY = "ImportError: libnone.so: cannot open shared object file"


def broken(flower: Flower, folder: Path) -> None:
    """Processes of which BROKEN is a part of the command line cannot load the app."""
    (folder / "sitecustomize.py").write_text(BROKEN)
    flower.env["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


def reason(run: Path) -> str:
    about = json.loads((run / "run.json").read_text())
    assert about["status"] == "failed"
    return about["reason"]


def test_rays_processes_that_cannot_load_the_app_end_the_run(flower: Flower, tmp_path: Path) -> None:
    broken(flower, tmp_path)
    flower.env["BROKEN"] = "ray::"
    done = flower.call("fedapps", "run", "algo=local", "scenario=emoji-tiny", f"results-dir={tmp_path}", "run-name=r")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f" cannot run the app: {WHY};" in reason(tmp_path / "r") and reason(tmp_path / "r") in done.stderr


class Deployed:
    """A SuperLink and SuperNodes on loopback."""

    def __init__(self, flower: Flower, folder: Path, link: list[str], connection: str, node: list[str]) -> None:
        self.flower, self.folder, self.node = flower, folder, node
        port, *self.ports = free_ports(3)
        self.address = f"127.0.0.1:{port}"
        (folder / "pair.yaml").write_text(PAIR)
        table = f'[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "{self.address}"\n{connection}\n'
        (flower.home / "config.toml").write_text(table)
        where = ["--host", "127.0.0.1", "--port", str(port), "--disable-runtime-dependency-installation"]
        flower.start("superlink", "flower-superlink", *where, *link)

    def join(self, i: int, name: str, *more: str, log: str = "", **env: str) -> subprocess.Popen[bytes]:
        """Start a SuperNode of one participant."""
        at = ["--superlink", self.address, "--host", "127.0.0.1", "--port", str(self.ports[i])]
        config = f'participant="{name}" state-dir="{self.folder}/state-{i}"'
        words = [*self.node, *at, "--node-config", config, *more]
        return self.flower.start(log or f"node-{i}", "flower-supernode", *words, env=env)

    def run(self, **options: str) -> subprocess.Popen[bytes]:
        """Start a run of the name ``r``."""
        where = f'results-dir="{self.folder}" run-name="r" scenario="{self.folder}/pair.yaml"'
        config = " ".join([where, *(f"{key.replace('_', '-')}={value}" for key, value in options.items())])
        return self.flower.start("run", "flwr", "run", str(ROOT), "lab", "--run-config", config, "--stream")

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.flower.home.glob("*.log")))


def test_a_supernode_that_cannot_load_the_app_ends_the_run(flower: Flower, tmp_path: Path) -> None:
    """At its start, whatever round-timeout is, and though the server itself can."""
    broken(flower, tmp_path)
    lab = Deployed(flower, tmp_path, ["--insecure"], "insecure = true", ["--insecure"])
    wait_for(f"http://{lab.address}/health")
    lab.join(0, "steady-0")
    lab.join(1, "other-0", BROKEN="flwr-clientapp")
    started = time.monotonic()
    lab.run(algo='"local"').wait(300)
    assert f" cannot run the app: {WHY};" in reason(tmp_path / "r"), lab.logs()
    assert time.monotonic() - started < 300, "round-timeout is an hour"


def certificate(folder: Path) -> None:
    """A key and a certificate for this machine, which is its own authority: ``server.key`` and ``server.pem``."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    now, names = datetime.now(UTC), [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(2))
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    (folder / "server.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    (folder / "server.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def key_pair(path: Path) -> None:
    """The key of a SuperNode, and ``<path>.pub`` for its registration."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))


def secured(flower: Flower, folder: Path) -> Deployed:
    """A SuperLink with TLS that takes registered SuperNodes only, and two keys that are."""
    certificate(folder)
    for i in range(2):
        key_pair(folder / f"key-{i}")
    files = {"ca-certfile": "server.pem", "certfile": "server.pem", "keyfile": "server.key"}
    link = [word for option, file in files.items() for word in (f"--ssl-{option}", str(folder / file))]
    root = str(folder / "server.pem")
    connection = f'root-certificates = "{root}"'
    lab = Deployed(flower, folder, [*link, "--enable-supernode-auth"], connection, ["--root-certificates", root])
    until(flower.home / "superlink.log", "Uvicorn running", 60)
    for i in range(2):
        done = flower.call("flwr", "supernode", "register", str(folder / f"key-{i}.pub"), "lab")
        assert done.returncode == 0, done.stdout + done.stderr
    return lab


def test_a_supernode_that_is_killed_comes_back_with_its_key(flower: Flower, tmp_path: Path) -> None:
    """Under TLS and node authentication. The run goes on without it; the SuperLink refuses it until it has missed two
    heartbeats; then it trains again, from its own state (also in the round in which it was killed, if it had not taken
    that round's message yet). It is started again and again, as service managers do."""
    asleep, key = tmp_path / "asleep", "--auth-supernode-private-key"
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    flower.env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    lab = secured(flower, tmp_path)
    steady = f'name: "sleeper:build", file: "{asleep}"'
    (tmp_path / "pair.yaml").write_text(PAIR.replace("name: cnn, width: 4", steady, 1))
    rows = tmp_path / "r" / "metrics.jsonl"
    lab.join(0, "steady-0", key, str(tmp_path / "key-0"))
    node = lab.join(1, "other-0", key, str(tmp_path / "key-1"))
    run = lab.run(algo='"local"', num_server_rounds="4")
    until(rows, OVER.format(1), 200, lab.logs)
    node.kill()
    node.wait()
    refused = 0
    while not taken(lab.join(1, "other-0", key, str(tmp_path / "key-1"), log="again"), flower.home / "again.log"):
        refused += 1
        assert "Exit Code: 305" in (log := (flower.home / "again.log").read_text()), log
        assert refused < 60, lab.logs()
        if OVER.format(2) in rows.read_text():
            asleep.touch()  # of round 3, until it has come back, so that round 4 is one with it
    asleep.unlink(missing_ok=True)
    run.wait(200)
    assert json.loads((tmp_path / "r" / "run.json").read_text())["status"] == "finished", lab.logs()
    found = [row for row in read_rows(rows) if row["phase"] == "train"]
    trained = {who: {row["round"] for row in found if row["participant"] == who and "error" not in row} for who in BOTH}
    assert trained["steady-0"] == {1, 2, 3, 4} and {1, 4} <= trained["other-0"]
    assert not [row for row in read_rows(rows) if "note" in row], "with its own state"
    assert os.listdir(tmp_path / "state-1" / "r") == ["other-0"]


def taken(node: subprocess.Popen[bytes], log: Path) -> bool:
    """Whether the SuperLink takes a SuperNode that has been started; one that it refuses ends."""
    while node.poll() is None:
        if "SuperNode ID" in log.read_text():
            return True
        time.sleep(0.1)
    return False


BOTH = ("steady-0", "other-0")
OVER = '"round": {}, "phase": "evaluate", "participant": "mean"'
