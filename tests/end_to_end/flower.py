"""Real Flower processes for tests: own FLWR_HOME, own ports, stopped by pid at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Flower:
    """A FLWR_HOME of its own, and the processes that were started with it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(parents=True)
        ports = free_ports(2)
        self.env = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(ports[0]),
            "FLWR_LOCAL_CONTROL_API_PORT": str(ports[1]),
            "HOME": str(home),
        }

    def call(self, *words: str, cwd: Path | None = None, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a command of this environment to its end."""
        return subprocess.run(
            [str(BIN / words[0]), *words[1:]],
            env=self.env,
            cwd=cwd or self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def start(self, name: str, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a command of this environment; its output goes to ``<home>/<name>.log``."""
        log = (self.home / f"{name}.log").open("wb")
        return subprocess.Popen(
            [str(BIN / words[0]), *words[1:]], env={**self.env, **(env or {})}, cwd=self.home, stdout=log, stderr=log
        )

    def stop(self) -> None:
        """End every process that has this FLWR_HOME, then those that do not listen."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for _ in range(50):
                pids = self._pids()
                if not pids:
                    return
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, sign)
                time.sleep(0.2)

    def kill(self, program: str) -> None:
        """kill -9 the processes of this environment that run ``program``."""
        for pid in self._pids():
            if program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)

    def _pids(self) -> Sequence[int]:
        mark = f"FLWR_HOME={self.home}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if any(value.startswith(mark) for value in (folder / "environ").read_bytes().split(b"\0")):
                    found.append(int(folder.name))
            except OSError:
                continue
        return [pid for pid in found if pid != os.getpid()]


def wait_for(url: str, seconds: float = 60) -> None:
    """Wait until an address answers."""
    end = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=2)
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.3)


def metrics(run: Path) -> dict[tuple[int, str, str], dict[str, float]]:
    """(round, phase, participant) -> metrics of a run folder, without what depends on the clock."""
    rows = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return {(row["round"], row["phase"], row["participant"]): row["metrics"] for row in rows if "metrics" in row}
