"""Every test runs on one torch thread, offline, with its own HOME for run folders and personal states."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.helpers import Clock

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("MPLCONFIGDIR", f"{tempfile.gettempdir()}/fedapps-tests-{os.getuid()}")  # fonts are listed once


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The server waits for nodes and replies by this clock, and so no longer than a moment."""
    made = Clock()
    monkeypatch.setattr("strategies.post.time", made)
    monkeypatch.setattr("strategies.nodes.time", made)
    return made


@pytest.fixture
def tiny(tmp_path: Path) -> dict:
    """A run-config of the tiny scenario, into a folder of this test."""
    return {"scenario": "emoji-tiny", "results-dir": str(tmp_path / "runs"), "run-name": "r", "seed": 1}
