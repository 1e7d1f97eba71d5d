"""Comparisons: the words, what is run and what is not, and a table worked out by hand."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedapps.cli import main
from fedapps.code_hash import code_hash
from fedapps.errors import UserError
from fedapps.results import folder
from fedapps.results.folder import RunFolder, lock
from fedapps.settings import read
from simulations.compare import cells, compare
from simulations.compare.picture import draw
from simulations.compare.plan import Cell, Plan, parse_algos, read_plan, unfit
from simulations.compare.report import Report, gather
from simulations.in_process import run
from tests.end_to_end.flower import ROOT
from tests.results.conftest import ACCURACY, SERVER, rows, write_run

TINY = ["scenario=mrl-tiny", "num-server-rounds=1", "seeds=1"]
LOCAL = {"image-0": [10, 10, 20], "image-1": [50, 55, 60], "text-0": [0, 0, 0]}
SECOND = {"image-0": [10, 40, 50], "image-1": [20, 20, 60], "text-0": [50, 50, 50]}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ------------------------------------------------------------------------------------------------ words


def test_algos_with_commas_in_brackets() -> None:
    assert parse_algos("local,fedafd[fedafd.baa=false,fedafd.beta=1e-1],fedafd,fedmrl[fedmrl.variant=mrl-e]") == {
        "local": {"algo": "local"},
        "fedafd[fedafd.baa=false,fedafd.beta=1e-1]": {"algo": "fedafd", "fedafd.baa": False, "fedafd.beta": 0.1},
        "fedafd": {"algo": "fedafd"},
        "fedmrl[fedmrl.variant=mrl-e]": {"algo": "fedmrl", "fedmrl.variant": "mrl-e"},
    }


def test_cells_and_their_folders(tmp_path: Path) -> None:
    plan = read_plan(["algos=local,fedmrl[fedmrl.variant=mrl-e]", "seeds=3,1", "scenario=mrl-tiny", "run-name=x"])
    runs = tmp_path / "runs" / "compare-mrl-tiny-x"
    assert [cell.folder for cell in plan.cells] == [
        runs / name for name in ("local-3", "fedmrl-variant-mrl-e-3", "local-1", "fedmrl-variant-mrl-e-1")
    ]
    assert plan.cells[1].config == {
        "scenario": "mrl-tiny",
        "algo": "fedmrl",
        "fedmrl.variant": "mrl-e",
        "seed": 3,
        "results-dir": str(runs),
        "run-name": "fedmrl-variant-mrl-e-3",
    }


def test_signs_of_exponents_make_folders_differ() -> None:
    labels = [f"local[learning-rate=1e{sign}3]" for sign in "+-"]
    plan = read_plan([f"algos={','.join(labels)}", "seeds=1", "scenario=mrl-tiny"])
    assert [cell.folder.name for cell in plan.cells] == ["local-learning-rate-1e3-1", "local-learning-rate-1e-3-1"]
    assert [read(cell.config)[0].learning_rate for cell in plan.cells] == [1000, 0.001]


def test_the_folder_hangs_on_what_all_cells_have_in_common() -> None:
    one = read_plan(["algos=local", "scenario=mrl-tiny"])
    assert read_plan(["scenario=mrl-tiny", "algos=fedmrl,local", "seeds=4", "target=3"]).folder == one.folder
    assert read_plan(["algos=local", "scenario=mrl-tiny", "local-epochs=2"]).folder != one.folder


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "algos: must be methods with commas between, such as local,fedafd[fedafd.baa=false]; not ''"),
        ("algos=local,", "algos: must be methods"),
        ("algos=fedmrl[fedmrl.d1=5", "algos: must be methods"),
        ("algos=local,local", "algos: local is there twice"),
        ("algos=local[seed=2]", "algos: local[seed=2]: seed is one for the whole comparison"),
        ("algos=local[local-epochs=2]", "algos: local[local-epochs=2]: local-epochs is one for the whole comparison"),
        ("algos=fedmrl fedmrl.d1=5", "fedmrl.d1: is a key of one method; write it in brackets: algos=fedmrl[fedmrl.d1"),
        ("algos=local seeds=1,x", "seeds: must be whole numbers with commas between, such as 1,2,3; not '1,x'"),
        ("algos=local seeds=1,1", "seeds: one is there twice in 1,1"),
        ("algos=local seed=1", "seed: a comparison has several; write seeds="),
        ("algos=local algo=local", "algo: a comparison has several; write algos="),
        ("algos=local resume=true", "resume: a comparison always goes on"),
        ("algos=local rival=lokal", "rival: lokal is not among algos (did you mean 'local'?)"),
        ("algos=local target=high", "target: must be a number, not 'high'"),
        ("algos=local target=nan", "target: must be a number, not nan"),
        ("algos=local target=-inf", "target: must be a number, not -inf"),
        ("algos=local run-name=../x", "run-name: "),
        ("algos=local run-name=a/b", "run-name: "),
        (
            "algos=local[data-x=1/2],local[data-x=1:2]",
            "algos: local[data-x=1/2] and local[data-x=1:2] would share the run folders local-data-x-1-2-SEED; ",
        ),
        ("algos=local tagret=3", "unknown key 'tagret'"),
        ("algos=local scenario=mrl-tony", "scenario: there is no scenario 'mrl-tony' (did you mean 'mrl-tiny'?)"),
    ],
)
def test_words_that_make_no_comparison(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"error: {line}")
    assert not Path("runs").exists()


def test_a_line_for_each_method_that_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    algos = "algos=local,nope,fedafd,fedmrl[fedmrl.d2=1],fedmrl[fedmrl.d1=0],local[fedmrl.d1=3]"
    assert main(["compare", algos, *TINY, "seeds=1,2"][:-1]) == 2
    starts = [
        "error: nope: algo: there is no method 'nope'",
        "error: fedmrl[fedmrl.d2=1]: unknown key 'fedmrl.d2' (did you mean 'fedmrl.d1'?)",
        "error: fedmrl[fedmrl.d1=0]: fedmrl.d1: must be greater than or equal to 1",
        "error: local[fedmrl.d1=3]: fedmrl.d1: is a key of fedmrl, and algo is local",
    ]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(starts)
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))
    assert not Path("runs").exists()


def test_nothing_starts_where_the_scenario_suits_no_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "algos=fedavg,fedafd", *TINY]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: fedavg: FedAvg cannot run scenario mrl-tiny: it averages whole models")
    assert second.startswith("error: fedafd: FedAFD cannot run scenario mrl-tiny: it needs `public` data")
    assert not Path("runs").exists()


def test_a_wrong_value_of_a_method_that_the_scenario_does_not_suit_still_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", "algos=local,fedafd[fedafd.beta=-1]", *TINY]) == 2
    assert capsys.readouterr().err.startswith("error: fedafd[fedafd.beta=-1]: fedafd.beta: must be greater")


def test_what_else_is_wrong_with_a_method_that_the_scenario_does_not_suit_does_not() -> None:
    """By default FedMRL's d1 is more than this scenario's dim, which has no `shared` model either; the participants are
    looked at with the method after it."""
    words = ["algos=fedmrl,fedavg,local", "scenario=cola-tiny", "seeds=1,2"]
    refused, wrong = unfit(read_plan(words))
    assert list(refused) == ["fedmrl"] and "`shared` names no image model" in refused["fedmrl"] and not wrong


def test_participants_are_looked_at_with_a_method_that_can_run(tmp_path: Path) -> None:
    text = (ROOT / "simulations" / "scenarios" / "cola-tiny.yaml").read_text()
    (tmp_path / "own.yaml").write_text(text.replace("name: emoji", "name: 'path:/nowhere'", 1))
    refused, wrong = unfit(read_plan(["algos=fedmrl,local,fedavg", f"scenario={tmp_path}/own.yaml", "seeds=1"]))
    assert list(refused) == ["fedmrl"] and list(wrong) == ["local"] and "no /nowhere" in wrong["local"]


# ------------------------------------------------------------------------------------------------ cells


def test_a_cell_counts_as_finished_with_the_same_settings_only() -> None:
    (cell,) = read_plan(["algos=local", *TINY, "run-name=x"]).cells
    assert not cells.finished(cell)
    made = RunFolder(*read(cell.config))
    with pytest.raises(UserError, match="this run is still going on"):
        cells.finished(cell)
    made.end("it broke")
    assert not cells.finished(cell)
    made.end()
    assert cells.finished(cell)
    assert not cells.finished(replace(cell, config={**cell.config, "num-server-rounds": 2}))  # it goes on
    with pytest.raises(UserError, match=r"local-1: resume: learning-rate was None .*; or choose another run-name"):
        cells.finished(replace(cell, config={**cell.config, "learning-rate": 0.5}))
    made.about["settings"]["num-server-rounds"] = 7
    made.end()
    with pytest.raises(UserError, match="num-server-rounds was 7 in that run and is 1 now"):
        cells.finished(cell)


def test_two_comparisons_do_not_share_a_folder(tmp_path: Path) -> None:
    words = ["algos=local", *TINY, "run-name=x", f"results-dir={tmp_path}"]
    folder = read_plan(words).folder
    folder.mkdir()
    refused = pytest.raises(UserError, match="another comparison is at work there; wait for its end, or stop it")
    with lock("results-dir", folder, "taken"), refused:
        compare(words)


@pytest.mark.parametrize("what", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_ends_the_cells_too(
    what: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ignored where it was before, as under ``nohup``."""

    class Process(subprocess.Popen[bytes]):
        told = False

        def poll(self) -> int | None:
            if not self.told:  # once: to end a process polls it too
                self.told = True
                os.kill(os.getpid(), what)
            return super().poll()

    started: list[Process] = []

    def start(*_: object) -> Process:
        started.append(Process([sys.executable, "-c", "import time; time.sleep(0.5)"]))
        return started[-1]

    monkeypatch.setattr(cells, "start", start)
    plan = read_plan(["algos=local", *TINY])
    for before, ended in ((_unwanted, True), (signal.SIG_IGN, False)):
        handler = signal.signal(what, before)
        try:
            if ended:
                with pytest.raises(KeyboardInterrupt):
                    cells.run_cells(plan, 0)
            else:
                assert cells.run_cells(plan, 0) == {}
            assert signal.getsignal(what) == before
        finally:
            signal.signal(what, handler)
        assert started[-1].returncode == (-signal.SIGTERM if ended else 0)


def _unwanted(*_: object) -> None:
    raise AssertionError("the signal was not taken over")


def test_what_cannot_run_or_fails_is_named_and_the_others_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cells, "start", _in_vain)
    plan = read_plan(["algos=local,fedmrl", *TINY])
    run(dict(plan.cells[0].config))
    words = ["algos=fedavg,local", *TINY, "--out", "here"]
    assert main(["compare", *words]) == 0
    words[0] += ",fedmrl"
    assert main(["compare", *words]) == 1
    told = capsys.readouterr().out
    assert "1 cells, 1 of them finished before\n" in told and "2 cells, 1 of them finished before\n" in told
    assert "fedmrl, seed 1: failed: no luck" in told
    assert {file.name for file in Path("here").iterdir()} == {"compare.md", "compare.csv", "compare.png"}
    lines = Path("here", "compare.md").read_text().splitlines()
    assert "- fedmrl, seed 1: failed: no luck" in lines
    refused = "FedAvg cannot run scenario mrl-tiny: it averages whole models"
    assert any(line.startswith(f"- fedavg: not run: {refused}") for line in lines)
    assert all(_cells(lines, label) == {"-"} for label in ("fedavg", "fedmrl"))
    fedavg, local, fedmrl = csv.DictReader(Path("here", "compare.csv").read_text().splitlines())
    assert fedavg["failed"].startswith(refused) and fedavg["finished seeds"] == ""
    assert local["failed"] == "" and fedmrl["failed"] == "seed 1: no luck"


def _in_vain(cell: Cell, *_: int) -> subprocess.Popen[bytes]:
    assert cell.label == "fedmrl"  # local is finished
    with cells.log_of(cell).open("wb") as log:
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit('no luck')"], stderr=log)


def _cells(lines: list[str], label: str) -> set[str]:
    """What stands in a method's rows of Markdown tables."""
    rows = [[text.strip() for text in line.split("|")] for line in lines if line.startswith("|")]
    return {text for row in rows if row[1] == label for text in row[2:-1]}


def test_cells_of_other_code_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["algos=local", "scenario=mrl-tiny", "num-server-rounds=1", "seeds=1,2,3"]
    now, old, resumed = read_plan(words).cells
    run(dict(now.config))
    with monkeypatch.context() as older:
        older.setattr(folder, "code_hash", lambda: "older")
        run(dict(old.config))
        RunFolder(*read(resumed.config))
    run({**resumed.config, "resume": True})
    found = [json.loads((cell.folder / "run.json").read_text()).pop("code-hash") for cell in (now, old, resumed)]
    assert found == [code_hash(), "older", None]
    assert main(["compare", *words]) == 0
    told = capsys.readouterr().out
    assert "3 cells, 3 of them finished before; not made by the present code alone: local (seed 2, 3)\n" in told
    assert "Cells of 3 versions of the code; not made by the present one alone: local (seed 2, 3)." in told


@pytest.mark.slow
def test_a_real_comparison_reuses_resumes_and_starts_cells(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["algos=local,fedmrl", *TINY[:2], "seeds=1,2"]
    plan = {cell.folder.name: cell for cell in read_plan(words).cells}
    for name in ("local-1", "local-2", "fedmrl-2"):
        run(dict(plan[name].config))
    about = plan["local-2"].folder / "run.json"
    about.write_text(about.read_text().replace('"finished"', '"running"'))  # as if killed before its last word
    done = [plan[name].folder / "run.json" for name in ("local-1", "fedmrl-2")]
    before = [file.read_bytes() for file in done]
    plan["fedmrl-1"].folder.mkdir()  # as if killed before its first
    assert main(["compare", *words]) == 0
    told = capsys.readouterr().out
    assert "4 cells, 2 of them finished before" in told
    assert [file.read_bytes() for file in done] == before
    assert "resumed" in json.loads(about.read_text())
    assert not any(file.suffix == ".safetensors" for file in plan["fedmrl-1"].folder.rglob("*")), "no models are left"
    local, fedmrl = csv.DictReader((about.parents[1] / "compare.csv").open())
    assert [local["finished seeds"], fedmrl["finished seeds"]] == ["1 2", "1 2"]
    assert float(local["bytes up a round mean"]) == 0 < float(fedmrl["bytes up a round mean"])
    assert float(fedmrl["mean accuracy mean"]) > 0 and fedmrl["Δ% to local mean"]


# ------------------------------------------------------------------------------------------ the report


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """FedAFD with two seeds, of which Local has only the first."""
    algos = {name: {"algo": name} for name in ("local", "fedafd")}
    plan = Plan(algos, [1, 2], tmp_path, threads=1, rival="local", target=30)
    local, first, failed, second = plan.cells
    write_run(local.folder, "local", rows(LOCAL, [1, 2, 3, 4], sends=False))
    write_run(first.folder, "fedafd", rows(ACCURACY, SERVER))
    write_run(second.folder, "fedafd", rows(SECOND, SERVER), seed=2)
    return Report(plan, gather(plan, {failed: "it | broke"}), {failed: "it | broke"})


def test_matches_among_ten_stand_beside_those_at_the_first_place(tmp_path: Path) -> None:
    plan = Plan({"fedafd": {"algo": "fedafd"}}, [1], tmp_path, threads=1)
    found = rows(ACCURACY, SERVER)
    for row in found:
        if "r1_sum" in row.get("metrics", {}):
            row["metrics"]["r10_sum"] = 10 * row["metrics"]["r1_sum"]
    write_run(plan.cells[0].folder, "fedafd", found)
    values = Report(plan, gather(plan, {}), {}).values
    assert values["Final metrics", "server r10_sum"] == {"fedafd": [10 * SERVER[-1]]}
    assert ("Final metrics", "image r10_sum") not in values


def test_table_by_hand(report: Report) -> None:
    def row(label: str) -> dict[str, str]:
        return {column: report.shown(column, rows[label]) for (_, column), rows in report.values.items()}

    assert row("local") == {
        "mean accuracy": "26.7 (1/2)",  # 20, 60, 0
        "image accuracy": "40.0 (1/2)",
        "text accuracy": "0.0 (1/2)",
        "server r1_sum": "4.0 (1/2)",
        "Δ% to local": "-",
        "% better than local": "-",
        "Δ% image": "-",
        "Δ% text": "-",
        "Δ% seed 1": "-",
        "Δ% seed 2": "-",
        "rounds to 30": "-",
        "bytes to 30": "-",
        "seconds to 30": "-",
        "bytes up a round": "0 B (1/2)",
        "bytes down a round": "0 B (1/2)",
        "seconds a round": "20.00 (1/2)",  # 10, 20, 30
    }
    assert row("fedafd") == {
        "mean accuracy": "50.0 ± 4.7",  # (30 + 60 + 50) / 3, and (50 + 60 + 50) / 3
        "image accuracy": "50.0 ± 7.1",  # 45, 55
        "text accuracy": "50.0 ± 0.0",
        "server r1_sum": "6.0 ± 0.0",
        "Δ% to local": "+25.0 (1/2)",  # image-0 +50 %, image-1 0 %; text-0 had 0
        "% better than local": "66.7 (1/2)",  # image-1 is level
        "Δ% image": "+25.0 (1/2)",
        "Δ% text": "-",
        "Δ% seed 1": "+25.0",
        "Δ% seed 2": "-",
        "rounds to 30": "2.0 ± 0.0",  # 80/3, then 110/3
        "bytes to 30": "7.70 kB",  # 2 · (350 up + 3500 down)
        "seconds to 30": "30.00 ± 0.00",  # 10 + 20
        "bytes up a round": "342 B",  # (350 + 350 + 300) / 3, and 350
        "bytes down a round": "3.42 kB",
        "seconds a round": "20.00 ± 0.00",
    }


def test_own_mixes_and_tests_by_hand(tmp_path: Path) -> None:
    """What tests send has columns of its own; a cell that failed and a method that was refused change nothing."""
    algos = {name: {"algo": name} for name in ("local", "fedafd", "fedavg", "fedmrl")}
    plan = Plan(algos, [1], tmp_path, threads=1, rival="local", refused={"fedavg": "no"})
    local, fedafd, failed = plan.cells
    mixes = {"image-0": (40, 50), "image-1": (80, 72), "text-0": (0, 90)}  # of Local, of FedAFD
    for which, cell in enumerate((local, fedafd)):
        made = rows(LOCAL if cell is local else SECOND, SERVER, sends=cell is fedafd)
        for row in made:
            if row["phase"] == "evaluate" and row["participant"] in mixes:
                row["metrics"]["accuracy_own_mix"] = mixes[row["participant"]][which]
                row |= {"bytes_up": 0, "bytes_down": 70 * which}
        write_run(cell.folder, cell.label, made)
    lost = {failed: "no luck"}
    report = Report(plan, gather(plan, lost), lost)
    shown = {
        column: [report.shown(column, rows[label]) for label in algos] for (_, column), rows in report.values.items()
    }
    assert {column: texts for column, texts in shown.items() if "own mix " in column} == {
        "Δ% own mix to local": ["-", "+7.5", "-", "-"],  # +25 %, -10 %; text-0 had 0
        "% own mix better than local": ["-", "66.7", "-", "-"],
    }
    assert shown["Δ% to local"] == ["-", "+75.0", "-", "-"]  # image-0 from 20 to 50, image-1 level
    assert {column: texts for column, texts in shown.items() if column.startswith("bytes")} == {
        "bytes up a round": ["0 B", "350 B", "-", "-"],
        "bytes down a round": ["0 B", "3.50 kB", "-", "-"],
        "bytes down of tests a round": ["0 B", "210 B", "-", "-"],
    }
    assert any(note.startswith("Δ% own mix: relative change of the accuracy") for note in report.notes())
    report.write(tmp_path, "fedapps compare")


def test_files(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal: none of its escapes may get into the file
    files = report.write(tmp_path, "fedapps compare algos=local,fedafd")
    assert [file.name for file in files] == ["compare.md", "compare.csv"]
    told = files[0].read_text().splitlines()
    assert "\x1b" not in files[0].read_text()
    assert told[2] == "`fedapps compare algos=local,fedafd`"
    assert [line for line in told if line.startswith("## ")] == [
        "## Final metrics",
        "## accuracy by kind",
        "## Δ% to local by kind",
        "## Δ% to local by seed",
        "## Costs",
    ]
    assert [" ".join(line.split()) for line in told if line.startswith("| fedafd")][:2] == [
        "| fedafd | 50.0 ± 4.7 | 6.0 ± 0.0 | +25.0 (1/2) | 66.7 (1/2) |",
        "| fedafd | 50.0 ± 7.1 | 50.0 ± 0.0 |",
    ]
    assert "- fedafd, seed 1: left out of a phase: text-0 (1)" in told
    assert "- local, seed 2: failed: it | broke" in told
    assert "- Versions: flwr 1.42.0." in told
    local, fedafd = csv.DictReader(files[1].open())
    assert local["failed"] == "seed 2: it | broke" and fedafd["failed"] == ""
    assert local["finished seeds"] == "1" and fedafd["finished seeds"] == "1 2"
    assert float(fedafd["image accuracy mean"]) == 50 and float(fedafd["image accuracy sd"]) == pytest.approx(50**0.5)
    assert local["image accuracy sd"] == "" and local["rounds to 30 mean"] == ""
    assert float(fedafd["Δ% seed 1"]) == 25 and fedafd["Δ% seed 2"] == "" and "Δ% seed 1 sd" not in fedafd


def test_tables_fit_a_screen(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    """At 100 characters no number is broken, and a long label is folded."""
    label = "fedafd[fedafd.sed-temperature=0.25,fedafd.baa=false]"
    algos = {**report.plan.algos, **{f"m{i}": {"algo": "fedafd"} for i in range(7)}, label: {"algo": "fedafd"}}
    Report(replace(report.plan, algos=algos), report.results, {}).show(Console(width=100))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100 and not any("…" in line for line in lines)
    assert any(line.split() == ["fedafd", "50.0", "±", "7.1", "50.0", "±", "0.0"] for line in lines)
    assert any(line.startswith("  fedafd ") and "7.70 kB" in line and "30.00 ± 0.00" in line for line in lines)


def test_bars_and_curves(report: Report) -> None:
    figure = draw(report)
    *above, accuracy, server = figure.axes
    titles = ["mean accuracy (%)", "image accuracy (%)", "text accuracy (%)", "server r1_sum (%)"]
    assert [axis.get_title() for axis in above] == titles
    assert [label.get_text() for label in above[0].get_yticklabels()] == ["local", "fedafd"]
    bars = [[round(bar.get_width(), 1) for bar in axis.patches] for axis in above]
    assert bars == [[26.7, 50.0], [40.0, 50.0], [0.0, 50.0], [4.0, 6.0]]
    assert [text.get_text().strip() for text in above[0].texts] == ["26.7", "50.0"]
    local, fedafd = accuracy.lines
    assert [round(float(y), 1) for y in local.get_ydata()] == [20.0, 21.7, 26.7]
    assert [round(float(y), 1) for y in fedafd.get_ydata()] == [26.7, 36.7, 53.3]  # seed 1 has no third round for all
    assert [float(y) for y in server.lines[1].get_ydata()] == [9.0, 2.0, 6.0, 6.0]
