"""FedAFD's server half: what is sent to whom, how teachers are made, what the server learns from."""

from pathlib import Path

import pytest
import torch
from flwr.app import Message
from torch.nn.functional import normalize

from fedapps import wire
from fedapps.holdings import Holdings
from fedapps.losses import sed_weights
from fedapps.results.folder import RunFolder, read_rows
from fedapps.seeds import generator
from fedapps.settings import read
from simulations.in_process import run
from strategies.base import Reply
from strategies.fedafd import FedAFD

P, D = 64, 16


def server(tiny: dict, **options: object) -> FedAFD:
    settings, scenario = read({**tiny, "algo": "fedafd", **options})
    return FedAFD(settings, scenario, Holdings(scenario, 1), RunFolder(settings, scenario))


def reply(**features: torch.Tensor) -> Reply:
    return Reply({"features": features}, {}, 48, 0.0, 0, None, 0)


def unit(*names: object) -> torch.Tensor:
    return normalize(torch.randn(P, D, generator=generator(*names)))


def test_teachers_are_weighted_by_sed_within_each_modality(tiny: dict) -> None:
    features = {"image": unit("i"), "text": unit("t")}
    a, b, c = unit("a"), unit("b"), unit("c")
    replies = {"image-0": reply(image=a), "text-0": reply(text=b), "mm-0": reply(image=c, text=c)}
    teachers = server(tiny).aggregate(features, replies)
    weights = sed_weights([a, c], features["image"])
    assert torch.allclose(teachers["image"], weights[0][:, None] * a + weights[1][:, None] * c, atol=1e-6)
    plain = server({**tiny, "run-name": "plain"}, **{"fedafd.sed": False}).aggregate(features, replies)
    assert torch.allclose(plain["text"], (b + c) / 2)


def test_a_modality_that_nobody_sent_has_no_teacher(tiny: dict) -> None:
    made = server(tiny)
    teachers = made.aggregate({"image": unit("i"), "text": unit("t")}, {"text-0": reply(text=unit("b"))})
    assert set(teachers) == {"text"}
    made.learn(1, teachers)
    (row,) = [row for row in made.run.rows() if row["phase"] == "fit"]
    assert set(row["metrics"]) == {"task_loss", "kd_text_loss"}


def test_distillation_draws_the_server_to_its_teachers(tiny: dict) -> None:
    made = server(tiny, **{"fedafd.order": "separate"})
    target = normalize(torch.ones(P, D))

    def distance() -> float:
        return float((made.server.encode_public()["image"] - target).norm(dim=1).mean())

    before = distance()
    for server_round in range(1, 6):
        made.learn(server_round, {"image": target, "text": target})
    assert distance() < 0.8 * before


@pytest.mark.parametrize(("order", "phases"), [("joint", ["fit"]), ("separate", ["fit", "distill"])])
def test_server_phases_of_both_orders(order: str, phases: list[str], tiny: dict) -> None:
    path = run({**tiny, "algo": "fedafd", "fedafd.order": order, "num-server-rounds": 1})
    rows = [row for row in read_rows(path / "metrics.jsonl") if row["participant"] == "server"]
    assert [row["phase"] for row in rows if row["phase"] in ("fit", "distill")] == phases


def test_each_participant_gets_the_branches_it_has_and_no_more(tiny: dict) -> None:
    seen: dict[str, set[str]] = {}

    def look(message: Message, answer: Message) -> Message:
        for name in ("image-0", "text-0", "mm-0"):
            record = message.content.get(f"{name}/encoder")
            if record is not None:
                seen[name] = {tensor.partition(".")[0] for tensor in wire.read_layout(record)}
        return answer

    run({**tiny, "algo": "fedafd", "num-server-rounds": 1}, tamper=look)
    assert seen == {"image-0": {"image"}, "text-0": {"text"}, "mm-0": {"image", "text"}}


@pytest.mark.parametrize(("key", "record"), [("fedafd.gff", "encoder"), ("fedafd.baa", "features")])
def test_what_a_switch_turns_off_is_not_sent(key: str, record: str, tiny: dict) -> None:
    sent: set[str] = set()

    def look(message: Message, answer: Message) -> Message:
        if message.metadata.message_type == "train":
            sent.update(name.rpartition("/")[2] for name in message.content)
        return answer

    run({**tiny, "algo": "fedafd", "num-server-rounds": 1, key: False}, tamper=look)
    assert sent == {"config", "encoder", "features"} - {record}


def test_bytes_follow_the_formula(tiny: dict) -> None:
    path = run({**tiny, "algo": "fedafd", "num-server-rounds": 1})
    train = {row["participant"]: row for row in read_rows(path / "metrics.jsonl") if row["phase"] == "train"}
    for name, modalities in (("image-0", 1), ("text-0", 1), ("mm-0", 2)):
        assert 0 < train[name]["bytes_up"] - 4 * P * D * modalities < 400
        assert train[name]["bytes_down"] > 4 * P * D * 2


def test_the_servers_buffers_do_not_see_client_data(tiny: dict) -> None:
    """One and the same server state after a round in which participants hold other data."""
    made = server(tiny)
    before = {name: t.clone() for name, t in made.server.model.state_dict().items()}
    made.server.encode_public()
    made.encoders()
    made.evaluate_server()
    assert all(torch.equal(t, before[name]) for name, t in made.server.model.state_dict().items())


def test_resume_with_cosine_and_separate_order(tiny: dict, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "simulations/scenarios/emoji-tiny.yaml").read_text()
    (tmp_path / "cosine.yaml").write_text(text.replace("batch-size: 16}", "batch-size: 16, schedule: cosine}"))
    config = {**tiny, "algo": "fedafd", "scenario": str(tmp_path / "cosine.yaml"), "fedafd.order": "separate"}

    def stop(message: Message, answer: Message) -> Message:
        if message.metadata.group_id == "2":
            raise KeyboardInterrupt
        return answer

    whole = run({**config, "num-server-rounds": 3, "run-name": "whole"})
    with pytest.raises(KeyboardInterrupt):
        run({**config, "num-server-rounds": 3}, tamper=stop)
    resumed = run({**config, "num-server-rounds": 3, "resume": True})

    def without_time(path: Path) -> list[dict]:
        rows = read_rows(path / "metrics.jsonl")
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]

    assert without_time(resumed) == without_time(whole)
