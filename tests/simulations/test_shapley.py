"""Shapley values over types: games worked out by hand, the runs of coalitions, and the table."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedapps.cli import main
from fedapps.data import digest
from fedapps.errors import UserError
from fedapps.holdings import Holdings
from fedapps.scenario import Scenario
from fedapps.settings import Settings, read
from simulations.compare.plan import Plan, read_plan
from simulations.compare.report import Report, gather, gather_coalitions
from simulations.compare.shapley import Coalition, coalitions, in_words, shapley
from simulations.in_process import run
from strategies.base import Strategy
from tests.results.conftest import ACCURACY, rows, write_run

COLA = ["algos=fedcola", "scenario=cola-tiny", "num-server-rounds=1", "seeds=1", "shapley=true"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ---------------------------------------------------------------------------------------------- the formula


def test_glove_game() -> None:
    """a and b have a left glove, c a right one; a pair is worth 1. Of the six orders c completes one in four."""
    v = {S: float("c" in S and len(S) > 1) for S in coalitions("abc")}
    assert shapley(v) == pytest.approx({"a": 1 / 6, "b": 1 / 6, "c": 4 / 6})


def test_additive_game_gives_everyone_their_own() -> None:
    own = {"a": 2.0, "b": -1.0, "c": 0.0, "d": 5.5}
    v = {S: 10 + sum(own[i] for i in S) for S in coalitions(list(own))}
    assert shapley(v) == pytest.approx(own)


def test_efficiency_symmetry_and_null_player() -> None:
    """d adds nothing to anyone; a and b are alike in every coalition."""
    worth: dict[tuple[int, bool], float] = {(0, False): 3, (1, False): 4, (2, False): 9, (0, True): 1}
    worth |= {(1, True): 8, (2, True): 20}
    v = {S: float(worth[len(S & {"a", "b"}), "c" in S]) for S in coalitions("abcd")}
    phi = shapley(v)
    assert sum(phi.values()) == pytest.approx(20 - 3)
    assert phi["a"] == pytest.approx(phi["b"]) and phi["d"] == 0
    # c: first 1 - 3, after one 8 - 4, after both 20 - 9, each in a third of the orders of a, b, c
    assert phi["c"] == pytest.approx((-2 + 4 + 11) / 3)


def test_all_coalitions_up_to_six_types() -> None:
    assert [in_words(S) for S in coalitions(("text", "image"))] == ["none", "text", "image", "image+text"]
    assert len(set(coalitions("abcdef"))) == 64
    with pytest.raises(UserError, match="shapley: 6 types are the most, not 7"):
        coalitions("abcdefg")


# -------------------------------------------------------------------------------------------- words and cells


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("scenario=cola-tiny shapley=maybe", "shapley: must be true or false, not 'maybe'"),
        ("scenario=cola-tiny shapley=1", "shapley: must be true or false, not '1'"),
        ("scenario=mrl-tiny shapley=true", "shapley: scenario mrl-tiny has one type, image; it takes two or more"),
        ("scenario=cola-tiny shapley=true train-only=image", "train-only: shapley=true has a run of each coalition"),
        ("scenario=cola-tiny train-only=sound", "local: train-only: must be none, or some of image, text, image-text"),
        ("scenario=pairless.yaml shapley=true", "shapley: scenario pairless has no metric to share out: it takes a"),
    ],
)
def test_words_that_make_no_game(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    entry = "  - {name: %s, modality: %s, task: classification, model: unified, data: {name: emoji}}\n"
    Path("pairless.yaml").write_text("participants:\n" + "".join(entry % (m, m) for m in ("image", "text")))
    assert main(["compare", "algos=local", *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"error: {line}")
    assert not Path("runs").exists()


def test_every_coalition_once_and_the_whole_federation_is_the_ordinary_cell() -> None:
    words = [*COLA[:3], "seeds=1,2"]
    plain, plan = read_plan(words), read_plan([*words, "shapley=true"])
    assert plan.folder == plain.folder and not plain.coalitions
    assert [cell.config for cell in plan.cells] == [cell.config for cell in plain.cells]
    trained = [cell.config["train-only"] for cell in plan.coalitions if cell.seed == 1]
    assert trained == ["none", "image", "text", "image-text", "image+text", "image+image-text", "image-text+text"]
    assert len({cell.folder for cell in plan.runs}) == len(plan.runs) == 16
    assert plan.coalitions[-1].folder.name == "fedcola-2-only-image-text_text"
    assert str(plan.coalitions[0]) == "fedcola, seed 1, train-only=none"


def test_coalitions_hold_the_same_data_and_draw_the_same_participants() -> None:
    """Images and pairs come from one data set: in a scenario without the ones the others would hold other rows."""
    plan = read_plan([*COLA, "fraction-train=0.5", "sample-by=kind"])
    (whole,) = plan.cells
    settings, scenario = read(whole.config)
    drawn = {r: _sample(settings, scenario, r) for r in (1, 2, 3)}
    assert len(drawn[1]) == 3
    held = _held(scenario)
    assert all(_held(read(cell.config)[1]) == held for cell in plan.coalitions[:2])
    values = json.loads(scenario.dump())
    values["participants"] = [entry for entry in values["participants"] if entry["name"] == "mm"]
    alone = _held(Scenario.parse(json.dumps(values)))
    assert alone and all(rows != held[name] for name, rows in alone.items())


def _held(scenario: Scenario) -> dict[str, str]:
    """Participant -> a hash of its training samples."""
    holdings = Holdings(scenario, seed=1)
    return {name: digest(holdings.train(name), ["text"]) for name in scenario.by_name}


def _sample(settings: Settings, scenario: Scenario, server_round: int) -> list[str]:
    stub = SimpleNamespace(settings=settings, scenario=scenario, round=server_round)
    return Strategy.sample(stub)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ the table


def test_table_by_hand(tmp_path: Path) -> None:
    """v = 1, 3, 2, 6 of none, image, text, both: images add (3 - 1 + 6 - 2) / 2. On seed 2 a coalition failed, so that
    there is no value; FedAvg was refused."""
    algos = {name: {"algo": name} for name in ("fedafd", "fedavg")}
    plan = Plan(algos, [1, 2], tmp_path, 1, refused={"fedavg": "no"}, types=("image", "text"))
    v = {"none": 1, "image": 3, "text": 2, "image+text": 6}
    lost = next(cell for cell in plan.coalitions if (cell.seed, cell.only) == (2, frozenset({"text"})))
    for cell in plan.runs:
        trained = in_words(frozenset(plan.types) if cell.only is None else cell.only)
        write_run(cell.folder, "fedafd", rows(ACCURACY, [0, 0, 0, v[trained]]), seed=cell.seed)
    report = Report(plan, gather(plan, {lost: "no luck"}), {lost: "no luck"}, gather_coalitions(plan, {lost: ""}))
    shown = {
        column: [report.shown(column, found[label]) for label in algos]
        for (table, column), found in report.values.items()
        if table == "Shapley value by type: server r1_sum"
    }
    assert shown == {
        "φ image": ["+3.0 (1/2)", "-"],
        "φ text": ["+2.0 (1/2)", "-"],
        "v(all)": ["6.0 ± 0.0", "-"],
        "v(none)": ["1.0 ± 0.0", "-"],
        "v(all) − v(none) − Σφ": ["0.0 (1/2)", "-"],
    }
    assert report.notes()[-1] == "fedafd, seed 2, train-only=text: failed: no luck"
    *files, worths = report.write(tmp_path, "fedapps compare")
    assert worths.name == "shapley.csv"
    found = list(csv.DictReader(worths.open()))
    assert [line["trained"] for line in found] == [*v, *v, ""]
    assert [line["v"] for line in found] == ["1.0", "3.0", "2.0", "6.0", "1.0", "3.0", "", "6.0", ""]
    assert [line["failed"] for line in found if line["failed"]] == ["no luck", "no"]
    fedafd, _ = csv.DictReader(files[1].open())
    assert float(fedafd["φ image mean"]) == 3 and fedafd["failed"] == "seed 2, train-only=text: no luck"


def test_a_method_whose_server_is_not_tested_has_no_value(tmp_path: Path) -> None:
    plan = Plan({"fedavg": {"algo": "fedavg"}}, [1], tmp_path, 1, types=("image", "text"))
    for cell in plan.runs:
        made = rows(ACCURACY, [0, 0, 0, 0])
        kept = [row for row in made if row["participant"] != "server" or row["phase"] != "evaluate"]
        write_run(cell.folder, "fedavg", kept)
    report = Report(plan, gather(plan, {}), {}, gather_coalitions(plan, {}))
    assert report.notes()[-1] == "fedavg: no Shapley value: no server r1_sum"
    assert not any(found["fedavg"] for (table, _), found in report.values.items() if table.startswith("Shapley"))
    report.write(tmp_path, "fedapps compare")


@pytest.mark.slow
def test_a_real_game(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever trains, all are tested, with as many samples; finished cells are taken over."""
    tested = set()
    plan = read_plan(COLA)
    for cell in plan.runs:
        found = [json.loads(line) for line in (run(dict(cell.config)) / "metrics.jsonl").read_text().splitlines()]
        trains = {row["participant"].partition("-")[0] for row in found if row["phase"] == "train"} - {"mean"}
        only = set(plan.types if cell.only is None else cell.only)
        assert {{"mm": "image-text"}.get(kind, kind) for kind in trains} == only
        tests = [row for row in found if row["phase"] == "evaluate" and row["participant"] != "mean"]
        tested.add(tuple((row["participant"], row["num_examples"]) for row in sorted(tests, key=_name)))
    assert len(tested) == 1 and len(tested.pop()) == 6
    assert main(["compare", *COLA]) == 0
    told = capsys.readouterr().out
    assert "8 cells, 8 of them finished before" in told
    assert "Shapley value by type: image-text participants' r1_sum" in told
    (fedcola,) = csv.DictReader((plan.folder / "compare.csv").open())
    worths = list(csv.DictReader((plan.folder / "shapley.csv").open()))
    v: dict[Coalition, float] = {frozenset(line["trained"].split("+")) - {"none"}: float(line["v"]) for line in worths}
    phi = [float(fedcola[f"φ {type_} mean"]) for type_ in plan.types]
    whole = v[frozenset(plan.types)]
    assert sum(phi) == pytest.approx(whole - v[frozenset()]) and float(fedcola["v(all) mean"]) == whole
    assert whole == float(fedcola["mm r1_sum mean"])
    assert shapley(v)["text"] == pytest.approx(phi[1])


def _name(row: dict[str, str]) -> str:
    return row["participant"]
