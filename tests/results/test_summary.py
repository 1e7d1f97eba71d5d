"""Every number of a summary, worked out by hand from the run of conftest.py."""

import json
from pathlib import Path

import pytest
from flwr.app import Message

from fedapps.errors import UserError
from fedapps.results.summary import summarise
from fedapps.results.table import result_table, size
from simulations.in_process import run


def test_participants(fedafd_run: Path) -> None:
    parties = summarise(fedafd_run)["participants"]
    assert parties["image-0"]["final"] == {"round": 3, "metrics": {"accuracy": 30}}
    assert parties["image-0"]["best"] == {"round": 2, "metrics": {"accuracy": 40}}
    assert parties["text-0"]["final"]["round"] == 2  # it failed in round 3
    assert parties["text-0"]["best"]["round"] == 1  # the first of equals
    assert parties["image-1"]["bytes"] == {"up": 600, "down": 6000}
    assert parties["text-0"]["bytes"] == {"up": 100, "down": 1000}
    assert parties["image-0"]["seconds"] == 1.5
    assert parties["text-0"]["failures"] == 1


def test_figures_of_an_earlier_round_than_the_last_are_said_to_be(fedafd_run: Path, local_run: Path) -> None:
    told = str(result_table(summarise(fedafd_run)).caption)
    assert told.endswith("left out of a phase: text-0 (1)\nlast tested earlier than the others: text-0 (round 2)")
    assert "earlier" not in str(result_table(summarise(local_run)).caption)


def test_kinds(fedafd_run: Path) -> None:
    image = summarise(fedafd_run)["kinds"]["image"]
    assert image["metric"] == "accuracy"
    assert image["participants"] == 2
    assert image["final"]["mean"]["accuracy"] == (30 + 60) / 2
    assert image["final"]["mean_by_examples"]["accuracy"] == (30 * 100 + 60 * 300) / 400
    assert image["best"]["round"] == 3  # means by round: 15, 30, 45


def test_a_mean_of_fewer_than_all_says_over_how_many(fedafd_run: Path) -> None:
    path = fedafd_run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if (row["phase"], row["participant"]) == ("evaluate", "image-1"):
            row |= {"metrics": {}, "num_examples": 0}  # a site without test data
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = summarise(fedafd_run)
    final = summary["kinds"]["image"]["final"]
    assert final["mean"] == final["mean_by_examples"] == {"accuracy": 30} and final["over"] == {"accuracy": 1}
    assert "over" not in summary["kinds"]["text"]["final"]
    assert list(result_table(summary).columns[0].cells) == ["image (1 of 2)", "text (1)", "server"]


def test_server_best_leaves_the_warm_up_out(fedafd_run: Path) -> None:
    server = summarise(fedafd_run)["server"]
    assert server["best"] == {"round": 2, "metrics": {"r1_sum": 6}}  # not the 9 of round 0
    assert server["final"] == {"round": 3, "metrics": {"r1_sum": 6}}


def test_bytes_seconds_failures(fedafd_run: Path) -> None:
    summary = summarise(fedafd_run)
    assert summary["rounds"] == 3
    assert summary["bytes"]["up"] == 350 + 350 + 300
    assert summary["bytes"]["down"] == 3500 + 3500 + 3000
    assert summary["bytes"]["per_round"] == {"up": 1000 / 3, "down": 10000 / 3}
    assert summary["seconds"] == {
        "total": 90.0,
        "per_round": 20.0,
        "phases": {"train": 5.0 + 6.0 + 7.0},
        "computing": {"train": 4.0},
    }
    assert summary["failures"] == {"text-0": 1}


def test_delta_against_local(fedafd_run: Path, local_run: Path) -> None:
    summary = summarise(fedafd_run, local_run)
    deltas = {name: values["delta_percent"]["final"] for name, values in summary["participants"].items()}
    assert deltas == {"image-0": 50.0, "image-1": 0.0, "text-0": None}  # Local's text-0 is at zero
    assert summary["kinds"]["image"]["delta_percent"]["final"] == 25.0
    assert summary["delta_percent"]["final"] == 25.0
    assert summary["participants"]["image-0"]["delta_percent"]["best"] == 100.0  # 40 to 20
    assert summary["server"]["delta_percent"]["final"] == 50.0
    assert summary["local"] == {"path": str(local_run), "seed": 1}


def test_written_as_returned(fedafd_run: Path) -> None:
    summary = summarise(fedafd_run)
    assert json.loads((fedafd_run / "summary.json").read_text()) == summary


def test_a_run_that_broke_early(fedafd_run: Path) -> None:
    text = (fedafd_run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (fedafd_run / "metrics.jsonl").write_text(text[0] + '{"round": 1, "phase": "tr')  # cut off by a crash
    about = json.loads((fedafd_run / "run.json").read_text())
    (fedafd_run / "run.json").write_text(json.dumps(about | {"ended": None}))
    summary = summarise(fedafd_run)
    assert summary["rounds"] == 0
    assert summary["kinds"]["image"]["final"] is None
    assert summary["server"]["best"] == {"round": 0, "metrics": {"r1_sum": 9}}
    assert result_table(summary).row_count == 3


def test_refusals(fedafd_run: Path, local_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder: it holds no run"):
        summarise(tmp_path / "nothing")
    with pytest.raises(UserError, match="is a run of fedafd, not of local"):
        summarise(local_run, fedafd_run)
    about = json.loads((local_run / "run.json").read_text())
    about["scenario"]["name"] = "another"
    (local_run / "run.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="is a run of scenario another, not of by-hand"):
        summarise(fedafd_run, local_run)
    (local_run / "run.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read as a run folder"):
        summarise(local_run)


def test_sizes_in_words() -> None:
    assert [size(n) for n in (0, 999, 1500, 2_000_000, 3_210_000_000)] == [
        "0 B",
        "999 B",
        "1.50 kB",
        "2.00 MB",
        "3.21 GB",
    ]


@pytest.mark.usefixtures("clock")
def test_a_run_that_fails_is_summarised_as_far_as_it_came(tiny: dict) -> None:
    def lose_round_2(message: Message, reply: Message) -> Message | None:
        return None if message.metadata.group_id == "2" else reply

    with pytest.raises(Exception, match="round 2, train: 0 good replies"):
        run({**tiny, "algo": "local", "round-timeout": 60.0, "max-failed-rounds": 1}, tamper=lose_round_2)
    folder = Path(tiny["results-dir"]) / tiny["run-name"]
    about = json.loads((folder / "run.json").read_text())
    assert about["status"] == "failed"
    assert "round 2, train: 0 good replies" in about["reason"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == 1
    assert summary["failures"] == {"image-0": 1, "text-0": 1, "mm-0": 1, "mm-1": 1}
    assert (folder / "plots" / "learning.png").is_file()


def test_only_like_runs_are_compared(fedafd_run: Path, local_run: Path) -> None:
    about = json.loads((local_run / "run.json").read_text())
    (local_run / "run.json").write_text(json.dumps(about | {"seed": 9}))
    with pytest.raises(UserError, match="has seed 9"):
        summarise(fedafd_run, local_run)
