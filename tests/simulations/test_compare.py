"""Comparisons: the words, what is run and what is not, and a table worked out by hand."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.image import imread

from fedapps.cli import main
from fedapps.errors import UserError
from fedapps.results.folder import RunFolder
from fedapps.settings import read
from simulations import compare
from simulations.compare import Cell, Plan, Report, gather, parse_algos, read_plan
from simulations.in_process import run
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
    folder = tmp_path / "runs" / "compare-mrl-tiny-x"
    assert [cell.folder for cell in plan.cells] == [
        folder / name for name in ("local-3", "fedmrl-variant-mrl-e-3", "local-1", "fedmrl-variant-mrl-e-1")
    ]
    assert plan.cells[1].config == {
        "scenario": "mrl-tiny",
        "algo": "fedmrl",
        "fedmrl.variant": "mrl-e",
        "seed": 3,
        "results-dir": str(folder),
        "run-name": "fedmrl-variant-mrl-e-3",
    }


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
        "error: fedafd: FedAFD cannot run scenario mrl-tiny: it needs `public` data",
        "error: fedmrl[fedmrl.d2=1]: unknown key 'fedmrl.d2' (did you mean 'fedmrl.d1'?)",
        "error: fedmrl[fedmrl.d1=0]: fedmrl.d1: must be greater than or equal to 1",
        "error: local[fedmrl.d1=3]: fedmrl.d1: is a key of fedmrl, and algo is local",
    ]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(starts)
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))
    assert not Path("runs").exists()


# ------------------------------------------------------------------------------------------------ cells


def test_a_cell_counts_as_finished_with_the_same_settings_only() -> None:
    (cell,) = read_plan(["algos=local", *TINY, "run-name=x"]).cells
    assert not compare.finished(cell)
    folder = RunFolder(*read(cell.config))
    assert not compare.finished(cell)
    folder.end("it broke")
    assert not compare.finished(cell)
    folder.end()
    assert compare.finished(cell)
    assert not compare.finished(replace(cell, config={**cell.config, "num-server-rounds": 2}))  # it goes on
    with pytest.raises(UserError, match=r"local-1: resume: learning-rate was None .*; or choose another run-name"):
        compare.finished(replace(cell, config={**cell.config, "learning-rate": 0.5}))
    folder.about["settings"]["num-server-rounds"] = 7
    folder.end()
    with pytest.raises(UserError, match="num-server-rounds was 7 in that run and is 1 now"):
        compare.finished(cell)


def test_two_comparisons_do_not_share_a_folder(tmp_path: Path) -> None:
    refused = pytest.raises(UserError, match="another comparison is at work there")
    with compare.alone(tmp_path), refused, compare.alone(tmp_path):
        pass
    with compare.alone(tmp_path):
        pass


def test_a_failed_cell_is_named_and_the_others_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["algos=local,fedmrl", *TINY]
    local, fedmrl = read_plan(words).cells
    run(dict(local.config))
    started = []

    def start(cell: Cell, *_: int) -> subprocess.Popen[bytes]:
        started.append(cell.name)
        with compare.log_of(cell).open("wb") as log:
            return subprocess.Popen([sys.executable, "-c", "raise SystemExit('no luck')"], stderr=log)

    monkeypatch.setattr(compare, "start", start)
    assert main(["compare", *words, "--out", "here"]) == 1
    assert started == [fedmrl.name]
    assert "fedmrl, seed 1: failed: no luck" in capsys.readouterr().out
    assert {file.name for file in Path("here").iterdir()} == {"compare.md", "compare.csv", "compare.png"}
    told = Path("here", "compare.md").read_text()
    assert "- fedmrl, seed 1: failed: no luck" in told
    assert "| fedmrl | - | - |" in told


@pytest.mark.slow
def test_a_real_comparison_reuses_resumes_and_starts_cells(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["algos=local,fedmrl", *TINY[:2], "seeds=1,2"]
    cells = {cell.name: cell for cell in read_plan(words).cells}
    for name in ("local-1", "local-2", "fedmrl-2"):
        run(dict(cells[name].config))
    about = cells["local-2"].folder / "run.json"
    about.write_text(about.read_text().replace('"finished"', '"running"'))  # as if killed before its last word
    done = [cells[name].folder / "run.json" for name in ("local-1", "fedmrl-2")]
    before = [file.read_bytes() for file in done]
    cells["fedmrl-1"].folder.mkdir()  # as if killed before its first
    assert main(["compare", *words]) == 0
    told = capsys.readouterr().out
    assert "4 cells, 2 of them finished before" in told
    assert [file.read_bytes() for file in done] == before
    assert "resumed" in json.loads(about.read_text())
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


def test_table_by_hand(report: Report) -> None:
    def row(label: str) -> dict[str, str]:
        return {column: report.shown(label, column) for column in report.columns}

    assert row("local") == {
        "mean accuracy": "26.7 (1/2)",  # 20, 60, 0
        "image accuracy": "40.0 (1/2)",
        "text accuracy": "0.0 (1/2)",
        "server r1_sum": "4.0 (1/2)",
        "Δ% to local": "-",
        "% better than local": "-",
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
        "rounds to 30": "2.0 ± 0.0",  # 80/3, then 110/3
        "bytes to 30": "7.70 kB",  # 2 · (350 up + 3500 down)
        "seconds to 30": "30.00 ± 0.00",  # 10 + 20
        "bytes up a round": "342 B",  # (350 + 350 + 300) / 3, and 350
        "bytes down a round": "3.42 kB",
        "seconds a round": "20.00 ± 0.00",
    }


def test_files(report: Report, tmp_path: Path) -> None:
    files = compare.write(report, "fedapps compare algos=local,fedafd", tmp_path)
    assert [file.name for file in files] == ["compare.md", "compare.csv", "compare.png"]
    told = files[0].read_text().splitlines()
    assert told[2] == "`fedapps compare algos=local,fedafd`"
    assert "| fedafd | 50.0 ± 4.7 | 50.0 ± 7.1 | 50.0 ± 0.0 | 6.0 ± 0.0 | +25.0 (1/2) | 66.7 (1/2) |" in told
    assert "- fedafd, seed 1: left out of a phase: text-0 (1)" in told
    assert "- local, seed 2: failed: it | broke" in told
    assert "- Versions: flwr 1.42.0." in told
    local, fedafd = csv.DictReader(files[1].open())
    assert local["failed"] == "seed 2: it | broke" and fedafd["failed"] == ""
    assert local["finished seeds"] == "1" and fedafd["finished seeds"] == "1 2"
    assert float(fedafd["image accuracy mean"]) == 50 and float(fedafd["image accuracy sd"]) == pytest.approx(50**0.5)
    assert local["image accuracy sd"] == "" and local["rounds to 30 mean"] == ""
    assert imread(files[2]).std() > 0.05


def test_bars_and_curves(report: Report) -> None:
    figure = compare.draw(report)
    accuracy, server = figure.axes[:2]
    assert [label.get_text() for label in accuracy.get_xticklabels()] == ["mean", "image", "text"]
    assert [label.get_text() for label in server.get_xticklabels()] == ["server"]
    bars = [[round(bar.get_height(), 1) for bar in bars] for bars in accuracy.containers if hasattr(bars, "patches")]
    assert bars == [[26.7, 40.0, 0.0], [50.0, 50.0, 50.0]]
    local, fedafd = figure.axes[2].lines
    assert [round(float(y), 1) for y in local.get_ydata()] == [20.0, 21.7, 26.7]
    assert [round(float(y), 1) for y in fedafd.get_ydata()] == [26.7, 36.7, 53.3]  # seed 1 has no third round for all
