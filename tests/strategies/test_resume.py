"""What a run is resumed from that is not quite as a run leaves it; nothing of what it has done is thrown away."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from fedapps import files
from fedapps.client_app import app
from fedapps.errors import UserError
from fedapps.results import folder
from fedapps.results.folder import read_rows
from fedapps.state import Store
from simulations.in_process import RUN_ID, run
from strategies.base import Strategy
from tests.end_to_end.flower import metrics
from tests.faults import phase_of


@pytest.fixture
def config(tiny: dict) -> dict:
    return {**tiny, "algo": "fedmrl", "scenario": "mrl-tiny", "num-server-rounds": 2}


@pytest.fixture
def path(config: dict) -> Path:
    """The folder of a run of two rounds that is over."""
    return run(config)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("harm", [cut, Path.unlink])
def test_a_run_without_a_checkpoint_is_not_begun_anew(harm: Callable[[Path], None], config: dict, path: Path) -> None:
    """All that it has recorded would be gone."""
    for version in Store(path / "checkpoint").versions():
        harm(Store(path / "checkpoint").path(version))
    before = (path / "metrics.jsonl").read_text()
    with pytest.raises(UserError, match=r"resume: .*/r has rounds, but no checkpoint of them can be read"):
        run({**config, "num-server-rounds": 3, "resume": True})
    assert (path / "metrics.jsonl").read_text() == before
    assert json.loads((path / "run.json").read_text())["status"] == "failed"


def test_a_row_that_was_cut_off_is_made_again(config: dict, path: Path) -> None:
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "phase": "tr')
    got = metrics(run({**config, "num-server-rounds": 3, "resume": True}))
    assert got == metrics(run({**config, "num-server-rounds": 3, "run-name": "whole"}))


@pytest.mark.parametrize("rounds", [2, 1])
def test_a_run_that_is_over_is_resumed_to_itself(
    rounds: int, config: dict, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And says so; also where fewer rounds are asked than are done."""
    before = read_rows(path / "metrics.jsonl")
    run({**config, "num-server-rounds": rounds, "resume": True})
    assert f"2 rounds are done already, num-server-rounds is {rounds}: nothing was trained" in caplog.text
    assert read_rows(path / "metrics.jsonl") == before
    assert json.loads((path / "run.json").read_text())["status"] == "finished"


def test_a_folder_with_any_name_also_behind_a_link(config: dict, tmp_path: Path) -> None:
    (tmp_path / "Läufe, 研究 'one'").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "Läufe, 研究 'one'")
    config |= {"results-dir": str(tmp_path / "link")}
    run({**config, "num-server-rounds": 1})
    got = run({**config, "results-dir": str(tmp_path / "Läufe, 研究 'one'"), "resume": True})
    assert metrics(got) == metrics(run({**config, "run-name": "whole"}))


def test_a_disk_that_is_full_when_rows_are_taken_back(
    config: dict, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, before = folder.put_text, (path / "metrics.jsonl").read_text()

    def full(file: Path, text: str) -> None:
        if file.name == "metrics.jsonl":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(file, text)

    monkeypatch.setattr(folder, "put_text", full)
    with pytest.raises(UserError, match=r"results-dir: .* cannot be written: No space left on device; mend that"):
        run({**config, "num-server-rounds": 3, "resume": True})
    assert (path / "metrics.jsonl").read_text() == before


def test_a_run_stopped_after_its_rows_were_taken_back_goes_on(config: dict) -> None:
    """Once more in the resumed one, before it has recorded anything."""
    longer = {**config, "num-server-rounds": 4}

    def stop(message: Message, reply: Message) -> Message:
        if phase_of(message) == (3, "train"):
            raise KeyboardInterrupt
        return reply

    for resume in (False, True):
        with pytest.raises(KeyboardInterrupt):
            run({**longer, "resume": resume}, tamper=stop)
    assert metrics(run({**longer, "resume": True})) == metrics(run({**longer, "run-name": "whole"}))


def test_what_comes_before_the_first_round_is_done_once(config: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a warm-up, which may take long."""
    done: list[Strategy] = []
    monkeypatch.setattr(Strategy, "prepare", lambda self: done.append(self))

    def stop(message: Message, reply: Message) -> Message:
        if phase_of(message) == (1, "train"):
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        run(config, tamper=stop)
    run({**config, "resume": True})
    assert len(done) == 1


def test_a_run_stopped_before_its_first_checkpoint_is_begun_anew(config: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first row has been written already, and is not there twice in the end."""

    def stop(_: Strategy, done: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Strategy, "evaluate_server", lambda _: {"accuracy": 1.0})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Strategy, "save", stop)
        run(config)
    rows = read_rows(run({**config, "resume": True}) / "metrics.jsonl")
    assert [r["round"] for r in rows if (r["phase"], r["participant"]) == ("evaluate", "server")] == [0, 1, 2]


def test_no_row_is_there_twice_after_a_stop_between_two_phases(config: dict) -> None:
    def stop(message: Message, reply: Message) -> Message:
        if phase_of(message) == (2, "evaluate"):
            raise KeyboardInterrupt
        return reply

    def events(path: Path) -> list[tuple[int, str, str]]:
        return [(row["round"], row["phase"], row["participant"]) for row in read_rows(path / "metrics.jsonl")]

    with pytest.raises(KeyboardInterrupt):
        run(config, tamper=stop)
    path = Path(config["results-dir"], "r")
    assert events(path)[-1] == (2, "train", "mean"), "rows of the unfinished round are there"
    run({**config, "resume": True})
    assert events(path) == events(run({**config, "run-name": "whole"}))


def test_participants_ahead_of_a_server_whose_last_checkpoints_are_lost(tiny: dict) -> None:
    """They are two rounds ahead, and have nothing any more that is as old: it is said of each, once."""
    config = {**tiny, "algo": "local", "num-server-rounds": 4}
    kept: dict[str, Path] = {}

    def copy(message: Message, reply: Message) -> Message:
        if phase_of(message) == (2, "train") and not kept:
            kept["checkpoint"] = Path(shutil.copytree(path / "checkpoint", path.parent / "kept"))
        return reply

    path = Path(tiny["results-dir"], "r")
    run(config, tamper=copy)
    shutil.rmtree(path / "checkpoint")
    shutil.copytree(kept["checkpoint"], path / "checkpoint")
    run({**config, "resume": True})
    notes = [
        (row["round"], row["participant"], row["note"]) for row in read_rows(path / "metrics.jsonl") if "note" in row
    ]
    told = "its personal state before round 2 is gone; it went on from that of round 3"
    assert notes == [(2, name, told) for name in ("image-0", "text-0", "mm-0", "mm-1")]


def test_a_straggler_does_not_meddle_with_a_later_round(tiny: dict) -> None:
    """As long as it is at work, its participant is left out; the state of the later round would be lost otherwise."""
    config: dict[str, Any] = {**tiny, "algo": "local", "num-server-rounds": 4, "round-timeout": 6.0}
    state, held = Path(tiny["results-dir"], "r", "state", "mm-0"), []

    def straggle(message: Message, reply: Message) -> Message:
        if phase_of(message) == (1, "train") and not held and "mm-0/metrics" in reply.content:
            held.append(files.lock("state-dir", state, "taken"))
        if phase_of(message) == (2, "train") and "mm-0/error" in reply.content:
            held[0].close()
        return reply

    rows = read_rows(run(config, tamper=straggle) / "metrics.jsonl")
    errors = [(row["round"], row["participant"], row["error"]) for row in rows if "error" in row]
    told = "mm-0 is still at work for an earlier round; wait for its end, or stop it"
    assert errors == [(2, "mm-0", told)] and not [row for row in rows if "note" in row]


def test_a_straggler_that_begins_after_later_rounds_does_nothing(tiny: dict) -> None:
    """As a process that was stopped before it began: it would put the state of its round in the place of later ones."""
    config: dict[str, Any] = {**tiny, "algo": "local", "num-server-rounds": 4, "round-timeout": 60.0}
    context = Context(RUN_ID, 100, {"partition-id": 0, "num-partitions": 1}, RecordDict(), config)
    held: list[Message] = []
    told: list[str] = []

    def straggle(message: Message, reply: Message) -> Message:
        if phase_of(message) == (1, "train"):
            held.append(message)
        if phase_of(message) == (3, "train") and held:
            late = held.pop()
            late.metadata.__dict__["_created_at"] -= 60
            told.append(str(app(late, context).content["mm-0/error"]["error"]))
        return reply

    rows = read_rows(run(config, 1, tamper=straggle) / "metrics.jsonl")
    assert told == ["mm-0 was asked more than 60 s ago: nothing was done"]
    assert not [row for row in rows if "note" in row or "error" in row]


def test_a_run_stopped_right_after_a_checkpoint_lacks_no_row(config: dict, path: Path) -> None:
    """Rows that come after it would not be made again."""

    def rows(run_folder: Path) -> list[dict[str, Any]]:
        return [row | {"seconds": 0} for row in read_rows(run_folder / "metrics.jsonl")]

    def save(self: Strategy, done: int) -> None:
        plain(self, done)
        if done == 1:
            raise KeyboardInterrupt

    plain = Strategy.save
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Strategy, "save", save)
        run({**config, "run-name": "stopped"})
    assert rows(run({**config, "run-name": "stopped", "resume": True})) == rows(path)


def test_rows_are_on_the_disk_before_the_checkpoint_is(config: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power failure could leave a checkpoint of a round whose rows are gone."""
    synced: list[str] = []
    plain = os.fsync

    def fsync(file: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}")))
        plain(file)

    monkeypatch.setattr(os, "fsync", fsync)
    run({**config, "num-server-rounds": 1})
    written = [name for name in synced if name.startswith(("metrics", "r0000"))]
    before = [written[i - 1] for i, name in enumerate(written) if name == "r00001-s0000.part"]
    assert before == ["metrics.jsonl"]
