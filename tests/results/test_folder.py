"""The run folder: what it refuses, and that its JSON is strict."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fedapps import files
from fedapps.errors import UserError
from fedapps.files import try_folder
from fedapps.results import folder
from fedapps.results.export import model_card
from fedapps.results.folder import RunFolder, check_run_folder, read_about, read_rows, write_json
from fedapps.results.plots import plot_runs
from fedapps.results.progress import Progress
from fedapps.results.record import read_record
from fedapps.results.summary import summarise
from fedapps.results.table import result_table
from fedapps.settings import read

NAN, INF = float("nan"), float("inf")


def strict(text: str) -> Any:
    """Parsed JSON; fails on NaN and Infinity, which Python would take."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


# ------------------------------------------------------------------------------------- damaged run folders


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "run.json: must be a mapping"),
        ("nothing", "run.json: is not JSON: Expecting value"),
        ('{"status": "finished"}', "run.json: algo: is missing"),
    ],
)
def test_run_json_that_is_none(text: str, said: str, fedafd_run: Path, tiny: dict) -> None:
    (fedafd_run / "run.json").write_text(text)
    with pytest.raises(UserError) as error:
        read_record(fedafd_run)
    assert said in str(error.value) and str(fedafd_run) in str(error.value)
    tiny |= {"results-dir": str(fedafd_run.parent), "run-name": fedafd_run.name, "resume": True}
    with pytest.raises(UserError) as error:
        check_run_folder(*read(tiny))
    assert said in str(error.value)


def test_run_json_of_no_scenario_or_time(make_run: Any) -> None:
    with pytest.raises(UserError, match=r"scenario: participants: is missing"):
        read_record(make_run("a", "fedafd", scenario={"name": "x"}))
    for started in ("yesterday", "2026-01-01T10:00:00", 5):
        with pytest.raises(UserError, match=r"run.json: started: "):
            read_record(make_run(f"b-{started}", "fedafd", started=started))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1]", "must be a mapping"),
        ('{"a": 1}', "round: is missing"),
        (
            '{"round": 1, "phase": "train", "participant": "x", "metrics": {"a": "b"}}',
            "metrics.a: must be a valid number",
        ),
        ('{"round": 1,', "is not JSON"),
    ],
)
def test_rows_that_are_none(line: str, said: str, fedafd_run: Path) -> None:
    file = fedafd_run / "metrics.jsonl"
    file.write_text(file.read_text().splitlines()[0] + f"\n{line}\n")
    with pytest.raises(UserError) as error:
        read_record(fedafd_run)
    assert str(error.value).startswith(f"{file}, line 2: ") and said in str(error.value)
    file.unlink()
    with pytest.raises(UserError, match=r"metrics.jsonl cannot be read: No such file"):
        read_record(fedafd_run)


# ------------------------------------------------------------------------------------- folders to write into


@pytest.mark.parametrize("results", ["/proc/runs", "file", "file/below", "n" * 300])
def test_results_dir_that_cannot_be_written(results: str, tmp_path: Path, tiny: dict) -> None:
    (tmp_path / "file").write_text("kept")
    folder = tmp_path / results
    with pytest.raises(UserError) as error:
        check_run_folder(*read(tiny | {"results-dir": str(folder)}))
    assert str(error.value).startswith(f"results-dir: {folder}/r cannot be written: ")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_results_dir(tmp_path: Path, tiny: dict) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match=r"results-dir: .*/runs/r cannot be written: Permission denied"):
        check_run_folder(*read(tiny))


def test_the_check_leaves_nothing_behind(tmp_path: Path, tiny: dict) -> None:
    (tmp_path / "there").mkdir()
    check_run_folder(*read(tiny | {"results-dir": str(tmp_path / "there" / "a" / "b")}))
    assert os.listdir(tmp_path / "there") == []
    RunFolder(*read(tiny))
    check_run_folder(*read(tiny | {"resume": True}))
    assert sorted(os.listdir(tmp_path / "runs" / "r")) == [".lock", "metrics.jsonl", "run.json"]


def test_only_a_try_tells_whether_a_folder_can_be_written() -> None:
    """This one is there, and looks as if root might write to it."""
    with pytest.raises(OSError, match="/proc"):
        try_folder(Path("/proc/self"))


def test_a_folder_that_another_run_has_begun_to_use_is_left_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tempfile.TemporaryFile

    def used(dir: Path) -> Any:
        (dir / "r").mkdir()
        return plain(dir=dir)

    monkeypatch.setattr(files.tempfile, "TemporaryFile", used)
    try_folder(tmp_path / "runs")
    assert os.listdir(tmp_path / "runs") == ["r"]


def test_a_run_json_that_cannot_be_written_again_is_still_there(tiny: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(*read(tiny))
    before = read_about(run.path)

    def full(path: Path, text: str, **_: Any) -> None:
        path.write_bytes(text[:10].encode())
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(Path, "write_text", full)
        run.end()
    assert read_about(run.path) == before


# ------------------------------------------------------------------------------------- folders that are there


@pytest.mark.parametrize("left", [[], [".lock"], [".lock", "metrics.jsonl"], [".lock", "metrics.jsonl", "run.part"]])
def test_a_run_killed_before_it_had_begun_is_started_again(left: list[str], tiny: dict) -> None:
    path = Path(tiny["results-dir"], "r")
    path.mkdir(parents=True)
    for name in left:
        (path / name).touch()
    with pytest.raises(UserError, match=r"resume: nothing was begun in .*/r; start it without resume"):
        check_run_folder(*read({**tiny, "resume": True}))
    check_run_folder(*read(tiny))
    RunFolder(*read(tiny)).end()
    assert read_about(path)["status"] == "finished"


@pytest.mark.parametrize("name", ["notes.txt", "checkpoint/r00001-s0000.safetensors", "metrics.jsonl", "run.json", ""])
def test_no_run_is_started_where_anything_else_is(name: str, tiny: dict) -> None:
    file = Path(tiny["results-dir"], "r", name)
    file.parent.mkdir(parents=True)
    file.write_text("{}\n")
    for use in (check_run_folder, RunFolder):
        with pytest.raises(UserError, match=r"run-name: .*/r exists already; choose another run-name") as told:
            use(*read(tiny))
        assert ("resume=true" in str(told.value)) == (name == "run.json"), "else there is nothing to continue"
    assert file.read_text() == "{}\n"


def test_no_run_is_started_behind_a_link_to_nowhere(tmp_path: Path, tiny: dict) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "r").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=r"run-name: .*/r exists already"):
        check_run_folder(*read(tiny))


def test_a_run_is_started_by_one_process_alone(tiny: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both looked when there was nothing yet; the second comes while the first is at work, or when it is over."""
    monkeypatch.setattr(folder, "check_run_folder", lambda *_: None)
    first = RunFolder(*read(tiny))
    with pytest.raises(UserError, match=r"run-name: .*/r: another process writes there; wait for its end, or stop it"):
        RunFolder(*read(tiny))
    first.row(1, "train", "mm-0")
    first.end()
    with pytest.raises(UserError, match=r"run-name: .*/r exists already"):
        RunFolder(*read(tiny))
    assert len(first.rows()) == 1


def test_a_resumed_run_is_running_again(tiny: dict) -> None:
    RunFolder(*read({**tiny, "num-server-rounds": 2})).end("no power")
    path = Path(tiny["results-dir"], "r")
    first = read_about(path)
    again = RunFolder(*read({**tiny, "num-server-rounds": 3, "resume": True}))
    about = read_about(path)
    assert (about["status"], about["reason"], about["ended"]) == ("running", None, None) and about["resumed"]
    assert about["settings"]["num-server-rounds"] == 3
    assert all(about[key] == first[key] for key in ("id", "started", "code-hash", "scenario"))
    again.end()


def test_a_run_of_a_version_with_other_settings_or_another_scenario_is_not_resumed(tiny: dict) -> None:
    RunFolder(*read(tiny)).end("stopped")
    path = Path(tiny["results-dir"], "r")
    about = read_about(path)
    settings = {key: value for key, value in about["settings"].items() if key != "evaluate-every"}
    changes = [
        ({"settings": settings}, "evaluate-every was None in that run and is 1 now; leave it as it was"),
        ({"settings": {**about["settings"], "extra": 5}}, "extra was 5 in that run and is None now"),
        ({"scenario": {**about["scenario"], "dim": 8}}, "the scenario emoji-tiny has changed since that run"),
    ]
    for changed, words in changes:
        write_json(path / "run.json", {**about, **changed})
        with pytest.raises(UserError, match=f"resume: {words}"):
            check_run_folder(*read({**tiny, "resume": True}))


@pytest.mark.parametrize(("algo", "schedule"), [("local", "constant"), ("local", "cosine"), ("fedkd", "constant")])
def test_more_rounds_are_not_asked_of_what_hangs_on_their_number(
    algo: str, schedule: str, tiny: dict, tmp_path: Path
) -> None:
    """A rate that falls up to the last round, or FedKD's threshold that rises up to it."""
    text = (Path(__file__).parents[2] / "simulations/scenarios/mrl-tiny.yaml").read_text()
    text = text.replace("batch-size: 16}", f"batch-size: 16, schedule: {schedule}}}")
    (tmp_path / "own.yaml").write_text(text)
    config = {**tiny, "algo": algo, "scenario": str(tmp_path / "own.yaml"), "num-server-rounds": 2}
    RunFolder(*read(config)).end()
    again = read({**config, "num-server-rounds": 3, "resume": True})
    if (algo, schedule) == ("local", "constant"):
        return check_run_folder(*again)
    with pytest.raises(UserError, match="resume: num-server-rounds was 2 in that run and is 3 now"):
        check_run_folder(*again)


@pytest.mark.parametrize(
    ("refused", "key", "value"),
    [
        (False, "num-server-rounds", 9),
        (False, "round-timeout", 9.0),
        (False, "min-participants", 2),
        (False, "max-failed-rounds", 9),
        (False, "device", "cpu"),
        (True, "seed", 2),
        (True, "local-epochs", 2),
        (True, "batch-size", 4),
        (True, "learning-rate", 0.5),
        (True, "fraction-train", 0.5),
        (True, "sample-by", "kind"),
        (True, "train-only", "image"),
        (True, "evaluate-every", 2),
        (True, "data-path", "site"),
        (True, "algo", "fedafd"),
    ],
)
def test_a_run_goes_on_with_what_decides_its_metrics(refused: bool, key: str, value: Any, tiny: dict) -> None:
    RunFolder(*read({**tiny, "algo": "local"})).end("stopped")
    again = read({**tiny, "algo": "local", key: value, "resume": True})
    if not refused:
        return check_run_folder(*again)
    with pytest.raises(UserError, match=r"resume: .* in that run and is .* now; leave it as it was"):
        check_run_folder(*again)


def test_a_run_that_other_code_goes_on_with_is_of_no_one_version(tiny: dict) -> None:
    RunFolder(*read(tiny)).end("stopped")
    path = Path(tiny["results-dir"], "r")
    write_json(path / "run.json", {**read_about(path), "code-hash": "0" * 64})
    RunFolder(*read({**tiny, "resume": True})).end()
    assert read_about(path)["code-hash"] is None


# -------------------------------------------------------------------------------- numbers that are not finite


def test_json_is_strict(tmp_path: Path, tiny: dict) -> None:
    write_json(tmp_path / "x.json", {"a": [NAN, (INF, 1.5)], "b": {"c": -INF}})
    assert strict((tmp_path / "x.json").read_text()) == {"a": [None, [None, 1.5]], "b": {"c": None}}
    run = RunFolder(*read(tiny))
    run.row(1, "train", "mm-0", metrics={"loss": NAN, "scale": 2.0}, num_examples=3, seconds=INF)
    row = {"round": 1, "phase": "train", "participant": "mm-0", "metrics": {"scale": 2.0}, "num_examples": 3}
    assert run.rows() == [row]
    run.rewind(1)
    assert strict((run.path / "metrics.jsonl").read_text())["metrics"] == {"loss": None, "scale": 2.0}


@pytest.mark.parametrize("word", ["null", "NaN"])  # older runs wrote NaN
def test_runs_that_diverged_are_read(word: str, fedafd_run: Path) -> None:
    file = fedafd_run / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        if row["phase"] == "evaluate" and row["participant"] in ("image-1", "text-0", "server"):
            row["metrics"] = dict.fromkeys(row["metrics"], NAN)
    file.write_text("".join(json.dumps(row).replace("NaN", word) + "\n" for row in rows))
    summary = summarise(fedafd_run)
    assert strict((fedafd_run / "summary.json").read_text()) == summary
    assert summary["kinds"]["image"]["final"]["mean"] == {"accuracy": 30}  # of image-0
    assert summary["participants"]["image-1"]["final"] == {"round": 3, "metrics": {}}
    assert summary["kinds"]["text"]["best"] == {"round": 2, "mean": {}, "mean_by_examples": {}}
    assert result_table(summary).row_count == 3
    assert all(picture.stat().st_size > 10_000 for picture in plot_runs([fedafd_run]))
    assert "on 300 test examples" in model_card(read_record(fedafd_run), "image-1", 3)


def test_progress_of_a_run_that_diverged(tiny: dict) -> None:
    settings, scenario = read(tiny)
    run = RunFolder(settings, scenario)
    run.row(1, "evaluate", "mean", metrics={"image/accuracy": NAN, "text/accuracy": 4.0})
    run.row(1, "evaluate", "server", metrics={"r1_sum": NAN})
    progress = Progress(run, scenario, 2, 1)
    assert progress._figures(read_rows(run.path / "metrics.jsonl")) == ["text accuracy 4.00"]
    progress.record(1)
    progress.round_done(1)


def test_a_run_in_progress_remembers_the_rows_of_its_round_alone(tiny: dict) -> None:
    """What it needs must not grow with the rounds: the file was read and checked anew after each of them once."""
    folder = RunFolder(*read({**tiny, "algo": "local"}))
    for server_round in (1, 2):
        for name in ("image-0", "mean"):
            folder.row(server_round, "evaluate", name, metrics={"accuracy": 5.0, "loss": float("nan")})
    metrics = {"accuracy": 5.0}
    assert folder.newest == [
        {"round": 2, "phase": "evaluate", "participant": name, "metrics": metrics} for name in ("image-0", "mean")
    ]
    assert [row["round"] for row in folder.rows()] == [1, 1, 2, 2]
    folder.end()
