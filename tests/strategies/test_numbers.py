"""Numbers beside the tensors: metrics, counts and tests that no honest participant sends; states with NaN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, MetricRecord

from fedapps.errors import UserError
from fedapps.results.folder import read_rows
from simulations.in_process import run
from tests.faults import config_of
from tests.helpers import participant


def saying(key: str, **values: Any):  # type: ignore[no-untyped-def]
    """a-0 says other numbers in a record of metrics."""

    def tamper(message: Message, reply: Message) -> Message:
        if f"a-0/{key}" in reply.content:
            reply.content[f"a-0/{key}"] = MetricRecord({**reply.content[f"a-0/{key}"], **values})
        return reply

    return tamper


def errors(path: Path) -> set[str]:
    return {row["participant"] for row in read_rows(path / "metrics.jsonl") if "error" in row}


@pytest.mark.parametrize(("key", "values"), [("metrics", {"seconds": -1e308}), ("evaluate", {"loss": 1.7e308})])
def test_a_huge_metric_of_one_does_not_end_the_run(key: str, values: dict[str, float], tmp_path: Path) -> None:
    path = run(config_of("fd", tmp_path), tamper=saying(key, **values))
    assert json.loads((path / "run.json").read_text())["status"] == "finished" and errors(path) == {"a-0"}


@pytest.mark.parametrize("count", [-3, 1e300, 12.5])
def test_test_samples_are_a_count(count: float, tmp_path: Path) -> None:
    assert errors(run(config_of("fd", tmp_path), tamper=saying("evaluate", **{"num-examples": count}))) == {"a-0"}


@pytest.mark.parametrize("count", [12.5, 0, 41])
def test_samples_are_a_whole_number(count: float, tmp_path: Path) -> None:
    """Not more than the 40 that it has: it would outweigh the others."""
    path = run(config_of("fml", tmp_path), tamper=saying("metrics", **{"num-examples": count}))
    assert errors(path) == {"a-0"}, "12.5 was read as 12 once, and no one that trains has none"


def test_a_test_that_no_phase_ends_with_is_refused(tmp_path: Path) -> None:
    """It would stand in the results, and the participant would not be tested with what the round has averaged."""

    def tamper(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train" and "a-0/metrics" in reply.content:
            test = MetricRecord({"accuracy": 100.0, "num-examples": 60, "seconds": 0.0})
            reply.content["a-0/evaluate"] = test
        return reply

    assert errors(run(config_of("fml", tmp_path), tamper=tamper)) == {"a-0"}


def test_parts_beside_the_model_are_not_kept_with_nan(tmp_path: Path) -> None:
    """FedKD's W, FedMRL's projector, FedAFD's discriminators, the optimiser: NaN there is loaded ever after."""
    me = participant("image-0", tmp_path)
    W = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(W.weight, float("nan"))
    with pytest.raises(UserError, match="diverged"):
        me.keep(W=W)
