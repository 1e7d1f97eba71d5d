"""FedMuscle over the wire: three messages, one training; who is held against whom; what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from flwr.app import Message

from fedapps import wire
from fedapps.errors import RunFailed, UserError
from fedapps.results.folder import read_rows
from fedapps.settings import read
from simulations.in_process import run
from tests.end_to_end.flower import metrics

NAMES = ["tags-0", "group-0", "layers-0", "text-0"]


@pytest.fixture
def tiny(tmp_path: Path) -> dict:
    return {"algo": "fedmuscle", "scenario": "muscle-tiny", "results-dir": str(tmp_path), "run-name": "r", "seed": 1}


def same(one: dict, two: dict, tolerance: float = 1e-3) -> bool:
    return one.keys() == two.keys() and all(
        one[key] == pytest.approx(values, rel=0, abs=tolerance) for key, values in two.items()
    )


@pytest.mark.parametrize("others", [1, 3])
@pytest.mark.parametrize("views", [0, 16])
def test_all_messages_give_the_same_training(others: int, views: int, tiny: dict) -> None:
    tiny |= {"fedmuscle.num-sampled": others, "fedmuscle.views": views, "fedmuscle.batch-size": 16}
    each_batch = {
        kind: metrics(run({**tiny, "run-name": kind, "fedmuscle.sync": "batch", "fedmuscle.wire": kind}))
        for kind in ("matrices", "grad", "tuples")
    }
    assert same(each_batch["grad"], each_batch["matrices"]) and same(each_batch["tuples"], each_batch["matrices"])
    each_epoch = {
        kind: metrics(run({**tiny, "run-name": f"e-{kind}", "fedmuscle.wire": kind})) for kind in ("matrices", "tuples")
    }
    assert same(each_epoch["tuples"], each_epoch["matrices"])
    assert not same(each_epoch["matrices"], each_batch["matrices"]), "stale representations train otherwise"


@pytest.mark.parametrize("loss", ["pairwise", "gramian"])
def test_rivals_of_the_loss_in_two_messages(loss: str, tiny: dict) -> None:
    tiny |= {"fedmuscle.loss": loss, "fedmuscle.sync": "batch"}
    whole = metrics(run({**tiny, "run-name": "m"}))
    assert same(metrics(run({**tiny, "run-name": "g", "fedmuscle.wire": "grad"})), whole, 5e-3)
    assert "tc_bound" not in whole[2, "train", "tags-0"] and "contrastive_loss" in whole[2, "train", "tags-0"]


def test_bytes_are_those_of_the_formula(tiny: dict) -> None:
    """Of P = 64 public samples, steps of B = 16, d = 16 and M = 2: rows are 8 bytes each, all else 4."""
    P, B, M, d, steps = 64, 16, 2, 16, 4
    sent = {
        "matrices": {"epoch": M * P * d * 4 + 2 * P * 8, "batch": M * P * d * 4 + 2 * P * 8},
        "grad": {"batch": P * d * 4 + steps * 2 * 4 + 2 * P * 8},
        "tuples": {"epoch": steps * B**M * (d + 1) * 4 + 2 * P * 8, "batch": steps * B**M * (d + 1) * 4 + 2 * P * 8},
    }
    for kind, by_sync in sent.items():
        for sync, down in by_sync.items():
            name = f"{kind}-{sync}"
            path = run({**tiny, "run-name": name, "fedmuscle.wire": kind, "fedmuscle.sync": sync})
            rows = [r for r in read_rows(path / "metrics.jsonl") if (r["round"], r["participant"]) == (2, "group-0")]
            got = {way: sum(row.get(f"bytes_{way}", 0) for row in rows) for way in ("up", "down")}
            messages = 1 + (steps if sync == "batch" else 1)
            assert 0 <= got["down"] - down <= 900 * messages, (
                f"{name}: else there are names, shapes and heads of arrays"
            )
            assert 0 <= got["up"] - (P * d * 4 + P * 8) <= 600 * messages, name
            first = [row for row in read_rows(path / "metrics.jsonl") if row["round"] == 1]
            assert sum(row.get("bytes_up", 0) + row.get("bytes_down", 0) for row in first) == 0


def test_others_are_drawn_anew_for_each_exchange_and_never_oneself(tiny: dict) -> None:
    sent: dict[tuple[str, str], list[bytes]] = {}

    def look(message: Message, reply: Message) -> Message:
        for name in NAMES:
            for key, record in message.content.array_records.items():
                if key == f"{name}/others":
                    content = wire.unpack(record)
                    assert sorted(content) == ["0", "1"] and not torch.equal(content["0"], content["1"])
                    sent.setdefault((name, message.metadata.message_type), []).append(content["0"].numpy().tobytes())
        return reply

    run({**tiny, "fedmuscle.sync": "batch", "num-server-rounds": 4}, tamper=look)
    assert len(sent) == 8 and all(len(set(found)) == len(found) for found in sent.values())


def without(name: str, phase: str):  # type: ignore[no-untyped-def]
    """``name`` fails in ``phase`` of round 2."""

    def tamper(message: Message, reply: Message) -> Message:
        if message.metadata.group_id == "2" and message.metadata.message_type.rpartition(".")[2] == phase:
            for key in [key for key in reply.content if key.startswith(f"{name}/")]:
                del reply.content[key]
        return reply

    return tamper


def test_one_that_fails_is_left_out_of_the_round_and_comes_back(tiny: dict) -> None:
    path = run({**tiny, "fedmuscle.num-sampled": 3}, tamper=without("text-0", "represent"))
    got = metrics(path)
    assert (2, "train", "text-0") not in got and (3, "train", "text-0") in got
    assert got[2, "train", "tags-0"]["tc_bound"] < got[3, "train", "tags-0"]["contrastive_loss"]
    assert {name for r, phase, name in got if (r, phase) == (2, "train")} == {"tags-0", "group-0", "layers-0", "mean"}


def test_one_left_alone_learns_its_task(tiny: dict) -> None:
    def tamper(message: Message, reply: Message) -> Message:
        for name in NAMES[1:]:
            reply = without(name, "represent")(message, reply)
        return reply

    got = metrics(run({**tiny}, tamper=tamper))
    assert set(got[2, "train", "tags-0"]) == {"task_loss"} and set(got[3, "train", "tags-0"]) > {"task_loss"}


def test_representations_that_would_drown_the_others_are_refused(tiny: dict) -> None:
    def tamper(message: Message, reply: Message) -> Message:
        key = "group-0/public"
        if message.metadata.group_id == "2" and key in reply.content.array_records:
            content = wire.unpack(reply.content.array_records[key])
            reply.content[key] = wire.pack({"rows": content["rows"], "z": 1.1 * content["z"]})
        return reply

    path = run(tiny, tamper=tamper)
    errors = [row for row in read_rows(path / "metrics.jsonl") if "error" in row]
    assert [(row["round"], row["participant"]) for row in errors] == [(2, "group-0")]
    assert "longer than 1" in errors[0]["error"]


def test_other_public_rows_than_asked_are_refused(tiny: dict) -> None:
    def tamper(message: Message, reply: Message) -> Message:
        key = "group-0/public"
        if message.metadata.group_id == "2" and key in reply.content.array_records:
            content = wire.unpack(reply.content.array_records[key])
            reply.content[key] = wire.pack({"rows": content["rows"].flip(0), "z": content["z"]})
        return reply

    path = run(tiny, tamper=tamper)
    errors = [row for row in read_rows(path / "metrics.jsonl") if "error" in row]
    assert [(row["round"], row["participant"]) for row in errors] == [(2, "group-0")]
    assert "other public rows" in errors[0]["error"]


def test_a_round_with_too_few_representations_fails_and_says_why(tiny: dict) -> None:
    def tamper(message: Message, reply: Message) -> Message:
        for key in [f"{name}/public" for name in NAMES if f"{name}/public" in reply.content.array_records]:
            content = wire.unpack(reply.content.array_records[key])
            reply.content[key] = wire.pack({"rows": content["rows"].flip(0), "z": content["z"]})
        return reply

    with pytest.raises(RunFailed, match=r"round 2, align: 0 good replies, min-participants is 1 \(tags-0: it encoded"):
        run({**tiny, "max-failed-rounds": 1}, tamper=tamper)


def test_a_resumed_run_goes_on_as_if_uninterrupted(tiny: dict) -> None:
    whole = metrics(run({**tiny, "fraction-train": 0.75}))
    run({**tiny, "fraction-train": 0.75, "num-server-rounds": 2, "run-name": "p"})
    assert metrics(run({**tiny, "fraction-train": 0.75, "run-name": "p", "resume": True})) == whole


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"fedmuscle.tau-prev": 0.2}, "fedmuscle.tau-prev: must be below tau, which is 0.2, not 0.2"),
        ({"fedmuscle.wire": "grad"}, "fedmuscle.wire: grad is the gradient of one step; it needs sync=batch"),
        (
            {"fedmuscle.wire": "tuples", "fedmuscle.loss": "gramian"},
            "fedmuscle.wire: tuples is a message of the muscle",
        ),
        ({"fedmuscle.wire": "tuples", "fedmuscle.batch-size": 1025}, "fedmuscle.wire: 1025^2 tuples are too many"),
        ({"fedmuscle.learn-tau": True, "fedmuscle.loss": "gramian"}, "fedmuscle.learn-tau: needs wire=matrices"),
        ({"fedmuscle.num-sampled": 4}, "fedmuscle.num-sampled: 4 asked, a participant of muscle-tiny has 3 others"),
        (
            {"fedmuscle.num-sampled": 2, "fraction-train": 0.5},
            "fedmuscle.num-sampled: 2 asked, a participant of muscle-tiny has 1 others in a round",
        ),
        ({"fedmuscle.tau-prev": 0.001}, "fedmuscle.tau-prev: 0.001 with 2 others is beyond float64"),
        ({"scenario": "mrl-tiny"}, "FedMuscle cannot run scenario mrl-tiny: it needs `public` data"),
    ],
)
def test_what_does_not_go_together_is_said_first(words: dict, line: str, tiny: dict) -> None:
    with pytest.raises(UserError) as error:
        run({**tiny, **words})
    assert str(error.value).startswith(line) and not Path(tiny["results-dir"], "r").exists()


def test_a_batch_that_is_larger_than_the_public_data_is_all_of_them() -> None:
    settings, _ = read({"algo": "fedmuscle", "scenario": "muscle-tiny", "fedmuscle.batch-size": 100})
    assert settings.params.sizes(64) == {"B": 64, "K": 64, "M": 2}
