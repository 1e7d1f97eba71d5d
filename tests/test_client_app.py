"""The ClientApp: who is hosted where, one participant's failure is its own, nothing off contract leaves the site."""

import platform
import threading
import time
from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedapps import client_app, wire
from fedapps.client_app import app, hosted
from fedapps.errors import UserError
from fedapps.files import lock
from fedapps.methods import METHODS, Method
from fedapps.scenario import load_scenario
from strategies.base import Strategy
from tests.helpers import config, context, message

TINY = load_scenario("emoji-tiny")


def ask(folder: Path, names: list[str], records: dict | None = None, **run_config: object) -> RecordDict:
    about = ConfigRecord({**config(folder, **{"algo": "local", **run_config}), "participants": names})
    return app(message("train", {"*/config": about, **(records or {})}), context()).content


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (1, [["image-0", "text-0", "mm-0", "mm-1"]]),
        (2, [["image-0", "mm-0"], ["text-0", "mm-1"]]),
        (3, [["image-0", "mm-1"], ["text-0"], ["mm-0"]]),
        (6, [["image-0"], ["text-0"], ["mm-0"], ["mm-1"], [], []]),
    ],
)
def test_any_number_of_nodes_hosts_all_participants(nodes: int, expected: list[list[str]]) -> None:
    found = [hosted(context(**{"partition-id": p, "num-partitions": nodes}), TINY) for p in range(nodes)]
    assert found == expected


def test_a_deployed_node_names_its_participants() -> None:
    assert hosted(context(participant="mm-1"), TINY) == ["mm-1"]
    assert hosted(context(participant="mm-1, image-0"), TINY) == ["mm-1", "image-0"]
    with pytest.raises(UserError, match="no participant 'mm-9'"):
        hosted(context(participant="mm-9"), TINY)


def test_hello_tells_who_and_what(tmp_path: Path) -> None:
    reply = app(message("query.hello", {"*/config": config(tmp_path)}), context(participant="text-0"))
    about = reply.content.config_records["config"]
    assert about["participants"] == ["text-0"] and about["num-examples"] == [48]
    assert len(str(about["code-hash"])) == len(str(about["public-hash"])) == 64


def test_a_participant_that_raises_fails_alone(tmp_path: Path) -> None:
    content = ask(tmp_path, ["image-0", "nobody-7", "text-0"])
    assert "nobody-7" in str(content["nobody-7/error"]["error"])
    assert content["image-0/metrics"]["num-examples"] == content["text-0/metrics"]["num-examples"] == 48


def replying(monkeypatch: pytest.MonkeyPatch, records: dict) -> None:
    """Put a method in place of Local whose client half replies ``records``."""
    rogue = ClientApp()

    @rogue.train()
    def train(msg: Message, _context: object) -> Message:
        return Message(
            RecordDict({"metrics": MetricRecord({"num-examples": 1, "seconds": 0.0}), **records}), reply_to=msg
        )

    monkeypatch.setattr(Method, "load_client", lambda self: rogue)


NUMBERS = {"num-examples": 1, "seconds": 0.0}
GOOD = {"features": wire.pack({"image": torch.zeros(64, 16)})}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"model": wire.pack({"head.weight": torch.zeros(9, 16)})}, "'model' may not cross"),
        ({"features": wire.pack({"label": torch.zeros(64, 16)})}, "tensor 'label'"),
        ({"features": wire.pack({"image": torch.zeros(48, 3, 32, 32)})}, r"\[64, 16\]"),
        ({"notes": ConfigRecord({"text": "raw"})}, "'notes' may not cross"),
        ({"more": MetricRecord({"x": 1})}, "'more' may not cross"),
        ({**GOOD, "metrics": MetricRecord({**NUMBERS, "labels": [1, 2]})}, "'labels' may not cross"),
        ({**GOOD, "metrics": MetricRecord({**NUMBERS, "task_loss": [1.0, 2.0]})}, "'task_loss' is a list"),
        ({**GOOD, "evaluate": MetricRecord({"num-examples": 1, "patient 7 is ill": 1})}, "may not cross"),
        ({}, "record 'features' is missing"),
    ],
)
def test_what_is_off_contract_never_leaves(
    record: dict, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replying(monkeypatch, record)
    content = ask(tmp_path, ["image-0"], algo="fedafd")
    assert list(content) == ["image-0/error"]
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(content["image-0/error"]["error"])


def test_what_is_off_contract_is_not_taken_either(tmp_path: Path) -> None:
    content = ask(tmp_path, ["image-0"], {"*/surprise": wire.pack({"w": torch.zeros(1)})})
    assert "'surprise' may not cross" in str(content["image-0/error"]["error"])


def test_every_method_declares_every_phase_of_its_client() -> None:
    for name, method in METHODS.items():
        assert {"train", "evaluate"} <= set(method.wire), name
        assert isinstance(method.load_client(), ClientApp)
        assert issubclass(method.load_strategy(), Strategy)


def test_a_good_reply_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replying(monkeypatch, GOOD)
    assert set(ask(tmp_path, ["image-0"], algo="fedafd")) == {"image-0/features", "image-0/metrics"}


def test_a_failure_does_not_quote_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rogue = ClientApp()

    @rogue.train()
    def train(_msg: Message, _context: object) -> Message:
        raise KeyError("caption: patient John Doe, label 3")

    monkeypatch.setattr(Method, "load_client", lambda self: rogue)
    reason = str(ask(tmp_path, ["image-0"])["image-0/error"]["error"])
    assert reason == "KeyError (the log of its node says more)"


def test_whatever_goes_wrong_with_a_hello_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that failed in Flower's way would be asked again and again."""

    def broken(*_: object) -> None:
        raise KeyError("caption: patient John Doe, label 3")

    monkeypatch.setattr(client_app, "holdings", broken)
    content = app(message("query.hello", {"*/config": config(tmp_path)}), context()).content
    told = {"error": "KeyError (the log of its node says more)", "host": platform.node()}
    assert dict(content["error"]) == told, "and nothing more"


def test_a_node_computes_on_as_many_threads_as_the_scenario_says(tmp_path: Path) -> None:
    """One by default: on another number of them, sums are of another order."""
    torch.set_num_threads(2)
    ask(tmp_path, ["text-0"])
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("soon", [True, False])
def test_a_straggler_is_waited_for_half_of_the_round(soon: bool, tmp_path: Path) -> None:
    """Beyond that, an answer would be too late for the server."""
    (state := tmp_path / "state" / "text-0").mkdir(parents=True)
    with lock("state-dir", state, "taken") as held:
        done = threading.Timer(0.3 if soon else 9, held.close)
        done.start()
        started = time.monotonic()
        content = ask(tmp_path, ["text-0"], **{"round-timeout": 4.0})
        waited = time.monotonic() - started
        done.cancel()
    if soon:
        assert "text-0/metrics" in content
    else:
        assert "still at work for an earlier round" in str(content["text-0/error"]["error"]) and 2 <= waited < 4


def test_a_node_answers_for_its_own_participants_only(tmp_path: Path) -> None:
    about = ConfigRecord({**config(tmp_path, algo="local"), "participants": ["mm-1"]})
    content = app(message("train", {"*/config": about}), context(participant="image-0")).content
    assert content["mm-1/error"]["error"] == "this node does not host mm-1"
