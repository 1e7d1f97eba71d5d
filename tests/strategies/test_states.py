"""Personal states and the server's rounds that do not fit each other: lost, of another run, ahead of the server."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Error, Message, MetricRecord

from fedapps import state
from fedapps.errors import RunFailed, UserError
from fedapps.results.folder import Row, read_rows
from simulations.in_process import run
from strategies.base import Reply, Strategy
from tests.end_to_end.flower import ROOT, metrics


def notes(path: Path) -> list[tuple[int, str, str]]:
    rows = read_rows(path / "metrics.jsonl")
    return [(row["round"], row["participant"], row["note"]) for row in rows if "note" in row]


def stop(message: Message, reply: Message) -> Message:
    if message.metadata.group_id == "4":
        raise KeyboardInterrupt
    return reply


@pytest.mark.parametrize(
    ("algo", "scenario", "name", "phase"),
    [
        ("local", "emoji-tiny", "image-0", "train"),
        ("fedafd", "emoji-tiny", "mm-0", "train"),
        ("fedmrl", "mrl-tiny", "a-0", "evaluate"),
        ("fedmuscle", "muscle-tiny", "text-0", "train"),
    ],
)
def test_a_state_that_is_lost_is_said_once(algo: str, scenario: str, name: str, phase: str, tiny: dict) -> None:
    """As when a node's disk is new: the participant goes on with a new model, and the run knows."""

    def lose(message: Message, reply: Message) -> Message:
        last = message.metadata.group_id == "2" and message.metadata.message_type == phase
        if last and f"{name}/metrics" in reply.content:
            shutil.rmtree(Path(tiny["results-dir"], "r", "state", name))
        return reply

    path = run({**tiny, "algo": algo, "scenario": scenario, "num-server-rounds": 4}, tamper=lose)
    told = "its personal state before round 3 is gone; it went on from a new model"
    assert notes(path) == [(3, name, told)] and not errors(path)
    assert json.loads((path / "run.json").read_text())["status"] == "finished"


def test_nothing_is_said_of_one_that_has_just_not_answered(tiny: dict) -> None:
    """Its state is newer than the server knows."""

    def lost(message: Message, reply: Message) -> Message:
        if message.metadata.group_id == "1" and message.metadata.dst_node_id == 100:
            reply = Message(Error(0, "lost"), reply_to=message)
            reply.metadata.__dict__["_message_id"] = "e"
        return reply

    path = run({**tiny, "algo": "local", "num-server-rounds": 3}, tamper=lost)
    assert not notes(path) and {row["participant"] for row in errors(path)} == {"image-0", "mm-0"}


def errors(path: Path) -> list[Row]:
    return [row for row in read_rows(path / "metrics.jsonl") if "error" in row]


def test_nothing_is_said_of_a_phase_that_needs_no_state(tiny: dict) -> None:
    def without(message: Message, reply: Message) -> Message:
        if message.metadata.group_id == "2" and "image-0/metrics" in reply.content:
            values = reply.content["image-0/metrics"].items()
            numbers = {key: value for key, value in values if not key.startswith("state-")}
            reply.content["image-0/metrics"] = MetricRecord(numbers)
        return reply

    path = run({**tiny, "algo": "local", "num-server-rounds": 3}, tamper=without)
    assert not notes(path) and not errors(path)


def test_a_state_of_an_earlier_run_of_this_name_is_not_taken_up(tiny: dict, tmp_path: Path) -> None:
    """The server's run folder was deleted and the run started anew, while the node still has its old states."""
    node = {"participant": "image-0 text-0 mm-0 mm-1", "state-dir": str(tmp_path / "site")}
    config = {**tiny, "algo": "local", "fraction-train": 0.5}
    first = run({**config, "seed": 5}, node_configs=[node])
    shutil.rmtree(first)
    again = run(config, node_configs=[node])
    clean = run({**config, "run-name": "clean"})
    assert metrics(again) == metrics(clean) and not notes(again)


def test_a_damaged_checkpoint_that_leaves_participants_ahead_is_said(tiny: dict) -> None:
    """The server falls back to the end of round 2, while participants keep what they had after 3 and in 4."""
    config = {**tiny, "algo": "fedafd", "num-server-rounds": 4}
    with pytest.raises(KeyboardInterrupt):
        run(config, tamper=stop)
    path = Path(tiny["results-dir"], "r")
    newest = path / "checkpoint" / "r00003-s0000.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    run({**config, "resume": True})
    assert {(3, told) for _, _, told in notes(path)} == {
        (3, "its personal state before round 3 is gone; it went on from that of round 3")
    }
    assert {row["round"] for row in read_rows(path / "metrics.jsonl")} == {0, 1, 2, 3, 4}


def test_a_damaged_checkpoint_with_participants_in_step_changes_nothing(tiny: dict) -> None:
    config = {**tiny, "algo": "fedafd", "num-server-rounds": 3}
    run(config)
    path = Path(tiny["results-dir"], "r")
    newest = path / "checkpoint" / "r00003-s0000.safetensors"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1  # one bit, which only a checksum tells
    newest.write_bytes(data)
    longer = run({**config, "num-server-rounds": 4, "resume": True})
    assert metrics(longer) == metrics(run({**config, "num-server-rounds": 4, "run-name": "whole"}))
    assert not notes(path)


def test_a_state_dir_that_cannot_be_written_ends_the_run_before_training(tiny: dict) -> None:
    node = {"participant": "image-0 text-0 mm-0 mm-1", "state-dir": "/proc/no"}
    with pytest.raises(RunFailed, match=r"^the node on .+: state-dir: /proc/no/r cannot be written: No such file"):
        run({**tiny, "algo": "local"}, node_configs=[node])
    assert not [row for row in read_rows(Path(tiny["results-dir"], "r", "metrics.jsonl")) if row["phase"] == "train"]


def test_a_home_that_cannot_be_written_names_the_option(tiny: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/proc/no")
    node = {"participant": "image-0 text-0 mm-0 mm-1"}
    with pytest.raises(RunFailed, match=r"state-dir: /proc/no/.* name another with --node-config 'state-dir="):
        run({**tiny, "algo": "local"}, node_configs=[node])
    with pytest.raises(UserError, match=r"results-dir: /proc/no/.* name another with results-dir="):
        run({**{key: value for key, value in tiny.items() if key != "results-dir"}, "algo": "local"})


def test_a_disk_that_is_full_at_a_participant_fails_it_alone(tiny: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = state.save_file

    def full(tensors: Any, path: Path, **options: Any) -> None:
        if path.parent.name == "image-0" and path.name.startswith("r00002"):
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(tensors, path, **options)

    monkeypatch.setattr(state, "save_file", full)
    path = run({**tiny, "algo": "local", "num-server-rounds": 3})
    (row,) = errors(path)
    assert row["round"] == 2 and row["error"].endswith("state/image-0 cannot be written: No space left on device")
    assert not list(path.rglob("*.part")) and not notes(path)
    assert (3, "train", "image-0") in metrics(path)


FULL = """
import resource, sys
from simulations.in_process import run
from strategies.base import Reply, Strategy

def fill(message, reply):
    if message.metadata.group_id == "2":
        resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, resource.RLIM_INFINITY))
    return reply

run(CONFIG, tamper=fill)
"""


@pytest.mark.parametrize(("limit", "what"), [(100_000, "checkpoint"), (500, "metrics.jsonl")])
def test_a_disk_that_is_full_at_the_server_ends_the_run_with_one_line(limit: int, what: str, tiny: dict) -> None:
    """The operating system refuses to let files grow over a limit."""
    config, path = {**tiny, "algo": "fedafd", "num-server-rounds": 3}, Path(tiny["results-dir"], "r")
    program = FULL.replace("BYTES", str(limit)).replace("CONFIG", repr(config))
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    told = done.stderr.strip().splitlines()[-1]
    assert re.fullmatch(
        r"fedapps.errors.UserError: results-dir: .*/r cannot be written: .*resume=true run-name=r results-dir=.*runs",
        told,
    )
    whole = metrics(run({**config, "run-name": "whole"}))
    assert metrics(run({**config, "resume": True})) == whole and not list(path.rglob("*.part")), what


@pytest.mark.parametrize("told", [10**9, 1e30])
def test_a_state_of_a_round_that_is_yet_to_come_is_said(told: float, tiny: dict) -> None:
    """Whatever a participant says of it; the run goes on, and can be resumed."""

    def boast(message: Message, reply: Message) -> Message:
        if message.metadata.group_id == "2" and "image-0/metrics" in reply.content:
            values = dict(reply.content["image-0/metrics"])
            reply.content["image-0/metrics"] = MetricRecord({**values, "state-round": told, "state-kept": 0})
        return reply

    config = {**tiny, "algo": "local", "num-server-rounds": 2}
    found = notes(run(config, tamper=boast))
    assert [(r, who) for r, who, _ in found] == [(2, "image-0")]
    path = run({**config, "num-server-rounds": 3, "resume": True})
    assert (3, "train", "image-0") in metrics(path)


def test_a_state_that_is_a_phase_old_is_said() -> None:
    """Of a method that keeps one in each of two phases of a round: the last is gone, that of the first is there."""
    told: list[str] = []
    server: Any = SimpleNamespace(states={}, run=SimpleNamespace(row=lambda *_, note: told.append(note)))
    reply = Reply({}, {}, num_examples=1, seconds=0.0, bytes_up=0, test=None, num_tested=0, keeps=True)
    for server.round, server.step, began in [(2, 1, (0, 0)), (2, 2, (2, 1)), (3, 1, (2, 1))]:
        assert not told
        Strategy.compare_states(server, "train", "a", replace(reply, began_from=began))
    assert told == ["its personal state before round 3 is gone; it went on from that of round 2"]


def test_a_state_that_is_a_round_old_is_said(tiny: dict) -> None:
    """As from a backup; also when it is put there while the server is stopped."""
    config, path = {**tiny, "algo": "local", "num-server-rounds": 2}, Path(tiny["results-dir"], "r")
    run(config)
    for name in ("image-0", "text-0"):
        (path / "state" / name / "r00002-s0001.safetensors").unlink()
    run({**config, "num-server-rounds": 3, "resume": True})
    told = "its personal state before round 3 is gone; it went on from that of round 1"
    assert notes(path) == [(3, "image-0", told), (3, "text-0", told)]
