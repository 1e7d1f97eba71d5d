"""Local's client half: training moves model and head, and goes on where it stopped."""

from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord

from clients.local import test as evaluate_phase
from clients.local import train
from fedapps import wire
from fedapps.errors import UserError
from fedapps.participant import Participant, state_root
from fedapps.tasks import METRICS
from tests.helpers import config, context, participant, scores


def run(phase, me: Participant):  # type: ignore[no-untyped-def]
    return phase(me.message, context()).content


@pytest.mark.parametrize("name", ["image-0", "text-0", "mm-1"])
def test_training_lowers_the_loss_over_rounds(name: str, tmp_path: Path) -> None:
    losses = [
        run(train, participant(name, tmp_path, server_round=r, algo="local"))["metrics"]["task_loss"]
        for r in range(1, 6)
    ]
    assert losses[-1] < losses[0]


def test_evaluation_uses_what_was_kept_and_changes_nothing(tmp_path: Path) -> None:
    trained = run(train, participant("image-0", tmp_path, algo="local"))
    again = run(evaluate_phase, participant("image-0", tmp_path, step=2, algo="local"))
    once_more = run(evaluate_phase, participant("image-0", tmp_path, step=3, algo="local"))
    assert scores(trained) == scores(again) == scores(once_more)
    untrained = run(evaluate_phase, participant("image-0", tmp_path / "new", algo="local"))
    assert scores(untrained) != scores(trained)


def test_a_repeated_phase_gives_the_same_result(tmp_path: Path) -> None:
    run(train, participant("mm-0", tmp_path, algo="local"))
    second = [run(train, participant("mm-0", tmp_path, server_round=2, algo="local")) for _ in range(2)]
    assert scores(second[0]) == scores(second[1])
    assert second[0]["metrics"]["task_loss"] == second[1]["metrics"]["task_loss"]


def test_a_participant_that_missed_rounds_goes_on_from_its_last(tmp_path: Path) -> None:
    me = participant("text-0", tmp_path, algo="local")
    run(train, me)
    late = participant("text-0", tmp_path, server_round=9, algo="local")
    late.restore()
    kept = me.store.load()["model"]
    assert all(torch.equal(kept[name], tensor) for name, tensor in late.model.state_dict().items())


def test_only_numbers_leave(tmp_path: Path) -> None:
    content = run(train, participant("image-0", tmp_path, algo="local"))
    assert set(content) == {"metrics", "evaluate"}
    wire.check_metrics(content["metrics"], ["task_loss", *wire.STATE], ["num-examples", "seconds"])
    wire.check_metrics(content["evaluate"], METRICS, ["num-examples", "seconds"])


def test_a_model_that_diverged_is_not_kept(tmp_path: Path) -> None:
    run(train, participant("image-0", tmp_path, algo="local"))
    with pytest.raises(UserError, match="training diverged"):
        run(train, participant("image-0", tmp_path, server_round=2, algo="local", **{"learning-rate": 1e30}))
    assert participant("image-0", tmp_path, algo="local").store.versions() == [(1, 1)]


def test_run_name_of_the_server_cannot_leave_the_state_folder(tmp_path: Path) -> None:
    about = ConfigRecord({**config(tmp_path), "run-name": "../../elsewhere"})
    with pytest.raises(UserError, match="no name for a folder"):
        state_root(context(participant="image-0", **{"state-dir": str(tmp_path)}), about)
