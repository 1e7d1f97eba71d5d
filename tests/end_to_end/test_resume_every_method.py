"""A run of every method, stopped in every phase of a round: what is resumed is the run that was not stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from simulations.in_process import run
from tests.end_to_end.flower import metrics
from tests.faults import NODES, VARIANTS, config_of, phase_of, phases_of

SOME = {"fraction-train": 0.6}
Metrics = dict[tuple[int, str, str], dict[str, float]]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Metrics]:
    """The metrics of a variant's run that nobody stopped, made once."""
    found: dict[str, Metrics] = {}

    def of(variant: str) -> Metrics:
        if variant not in found:
            found[variant] = metrics(run(config_of(variant, tmp_path_factory.mktemp("whole"), **SOME), NODES))
        return found[variant]

    return of


@pytest.mark.parametrize(
    ("variant", "phase"), [(variant, phase) for variant in VARIANTS for phase in [*phases_of(variant), "evaluate"]]
)
def test_a_run_stopped_in_any_phase_goes_on_as_if_nothing_had_been(
    variant: str, phase: str, uninterrupted: Callable[[str], Metrics], tmp_path: Path
) -> None:
    """In round 2 one participant has done the phase, and kept its state, when the server is stopped."""
    whole = uninterrupted(variant)
    config: dict[str, Any] = config_of(variant, tmp_path, **SOME)
    with pytest.raises(KeyboardInterrupt):
        run(config, NODES, tamper=stop_in(phase))
    got = metrics(run({**config, "resume": True}, NODES))
    assert got == whole
    trained, tested = (
        {name for r, what, name in got if r == 2 and (what == "evaluate") == is_test} for is_test in (0, 1)
    )
    assert trained - {"mean"} and tested - trained - {"server"}, "some sat out"


def stop_in(phase: str) -> Callable[[Message, Message], Message]:
    """Ctrl-C as soon as the first has answered in a phase of round 2."""

    def tamper(message: Message, reply: Message) -> Message:
        if phase_of(message) == (2, phase):
            raise KeyboardInterrupt
        return reply

    return tamper
