"""The loop: waiting, sampling, failures that harm nobody, resuming, all in one process."""

import json
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord

from fedapps import wire
from fedapps.data import load
from fedapps.errors import RunFailed, UserError
from fedapps.results.folder import read_rows
from fedapps.settings import Settings
from simulations.in_process import run
from strategies.base import Strategy
from tests.end_to_end.flower import metrics


def rows(path: Path) -> list[dict]:
    return read_rows(path / "metrics.jsonl")


def errors(path: Path) -> dict[str, str]:
    return {row["participant"]: row["error"] for row in rows(path) if "error" in row}


def on_train(change):  # type: ignore[no-untyped-def]
    """Tamper with replies to ``train`` of round 1 only."""

    def tamper(message: Message, reply: Message) -> Message | None:
        if message.metadata.message_type == "train" and message.metadata.group_id == "1":
            return change(message, reply)
        return reply

    return tamper


def poisoned(name: str, record: ArrayRecord | None):  # type: ignore[no-untyped-def]
    def change(message: Message, reply: Message) -> Message:
        if f"{name}/features" in reply.content:
            del reply.content[f"{name}/features"]
            if record is not None:
                reply.content[f"{name}/features"] = record
        return reply

    return on_train(change)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (wire.pack({"image": torch.full((64, 16), float("nan"))}), "'features/image' holds NaN or infinity"),
        (wire.pack({"image": torch.zeros(63, 16)}), "the contract says float32 [64, 16]"),
        (wire.pack({"image": torch.zeros(64, 16, dtype=torch.float16)}), "is float16"),
        (wire.pack({"model": torch.zeros(2)}), "may not hold a tensor 'model'"),
        (ArrayRecord([]), "not a packed record"),
        (None, "record 'features' is missing"),
    ],
)
def test_a_bad_reply_harms_nobody(record: ArrayRecord | None, words: str, tiny: dict) -> None:
    path = run({**tiny, "algo": "fedafd"}, tamper=poisoned("image-0", record))
    assert list(errors(path)) == ["image-0"] and words in errors(path)["image-0"]
    final = metrics(path)
    assert (2, "train", "image-0") in final and (1, "train", "text-0") in final
    assert json.loads((path / "run.json").read_text())["status"] == "finished"


def test_a_bad_reply_counts_as_no_reply(tiny: dict, tmp_path: Path) -> None:
    """What the others make of the round is the same as if the participant had said nothing."""

    def silent(message: Message, reply: Message) -> Message:
        for key in [key for key in reply.content if key.startswith("image-0/")]:
            del reply.content[key]
        return reply

    nan = wire.pack({"image": torch.full((64, 16), float("nan"))})
    a = run({**tiny, "algo": "fedafd", "run-name": "a"}, tamper=poisoned("image-0", nan))
    b = run({**tiny, "algo": "fedafd", "run-name": "b"}, tamper=on_train(silent))
    assert metrics(a) == metrics(b)
    assert errors(b) == {"image-0": "the reply holds nothing of this participant"}


@pytest.mark.usefixtures("clock")
def test_a_node_that_fails_or_is_lost_is_left_out(tiny: dict) -> None:
    def lost(message: Message, reply: Message) -> Message | None:
        return None if message.metadata.dst_node_id == 100 else reply

    def crashed(message: Message, reply: Message) -> Message:
        if message.metadata.dst_node_id == 100:
            broken = Message(Error(2, "Traceback ...\nValueError: boom"), reply_to=message)
            broken.metadata.__dict__["_message_id"] = "e"
            return broken
        return reply

    path = run({**tiny, "algo": "local", "round-timeout": 60.0, "run-name": "lost"}, tamper=on_train(lost))
    assert errors(path) == {"image-0": "no reply within 60 s", "mm-0": "no reply within 60 s"}
    path = run({**tiny, "algo": "local", "run-name": "crashed"}, tamper=on_train(crashed))
    assert errors(path) == {"image-0": "ValueError: boom", "mm-0": "ValueError: boom"}


def test_of_a_long_error_the_records_hold_the_beginning(tiny: dict) -> None:
    def long(message: Message, reply: Message) -> Message:
        if "image-0/metrics" in reply.content:
            reply.content["image-0/error"] = ConfigRecord({"error": "first line\n" + 10_000 * "x"})
        return reply

    assert errors(run({**tiny, "algo": "local"}, tamper=on_train(long))) == {"image-0": 500 * "x"}


def test_below_min_participants_the_run_fails_and_says_why(tiny: dict) -> None:
    nan = wire.pack({"image": torch.full((64, 16), float("nan"))})
    with pytest.raises(RunFailed, match="3 good replies, min-participants is 4"):
        run({**tiny, "algo": "fedafd", "min-participants": 4, "max-failed-rounds": 1}, tamper=poisoned("image-0", nan))
    about = json.loads((Path(tiny["results-dir"]) / "r" / "run.json").read_text())
    assert about["status"] == "failed" and "image-0: 'features/image' holds NaN" in about["reason"]
    assert rows(Path(tiny["results-dir"]) / "r")


@pytest.mark.usefixtures("clock")
def test_the_reason_of_a_failed_run_names_those_that_did_not_answer(tiny: dict) -> None:
    config = {**tiny, "algo": "local", "min-participants": 4, "max-failed-rounds": 1, "round-timeout": 60.0}
    with pytest.raises(RunFailed, match=r"\(image-0: no reply within 60 s; mm-0: no reply within 60 s\)"):
        run(config, tamper=on_train(lambda message, reply: reply if message.metadata.dst_node_id != 100 else None))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("kind", ["error", "lost"])
def test_a_participant_that_stays_bad_does_not_end_the_run(kind: str, tiny: dict) -> None:
    """It is left out of each round's training, and asked no second time for its test."""

    def bad(message: Message, reply: Message) -> Message | None:
        if message.metadata.message_type == "query.hello" or message.metadata.dst_node_id != 101:
            return reply
        if kind == "lost":
            return None
        broken = Message(Error(5, "Node Unavailable"), reply_to=message)
        broken.metadata.__dict__["_message_id"] = "e"
        return broken

    path = run({**tiny, "algo": "local", "round-timeout": 60.0}, 4, tamper=bad)
    assert json.loads((path / "run.json").read_text())["status"] == "finished"
    assert [row["participant"] for row in rows(path) if "error" in row] == ["text-0", "text-0"]
    assert (2, "evaluate", "mm-1") in metrics(path)


def test_a_node_that_does_not_answer_at_first_is_asked_again(tiny: dict) -> None:
    seen = []

    def deaf(message: Message, reply: Message) -> Message:
        seen.append(message.metadata.message_type)
        if len(seen) > 2:
            return reply
        broken = Message(Error(5, "Node Unavailable"), reply_to=message)
        broken.metadata.__dict__["_message_id"] = "e"
        return broken

    path = run({**tiny, "algo": "local"}, tamper=deaf)
    assert seen[:4] == ["query.hello"] * 4 and (2, "train", "text-0") in metrics(path)


@pytest.mark.parametrize(
    "record",
    [
        MetricRecord({"num-examples": 1}),
        MetricRecord({"num-examples": float("nan"), "seconds": 0.0}),
        ConfigRecord({"num-examples": 1, "seconds": 0.0}),
        wire.pack({"w": torch.zeros(1)}),
    ],
)
def test_odd_metrics_are_dropped_like_any_bad_reply(record: object, tiny: dict) -> None:
    def change(message: Message, reply: Message) -> Message:
        if "image-0/metrics" in reply.content:
            del reply.content["image-0/metrics"]
            reply.content["image-0/metrics"] = record
        return reply

    path = run({**tiny, "algo": "local"}, tamper=on_train(change))
    assert list(errors(path)) == ["image-0"]


@pytest.mark.parametrize(
    ("fraction", "at_least", "count"),
    [
        (0.07, 1, 7),
        (0.14, 1, 14),
        (0.071, 1, 8),
        (0.001, 1, 1),
        (1e-12, 1, 1),
        (0.07, 9, 9),
        (0.07, 300, 100),
        (1, 1, 100),
    ],
)
def test_a_share_of_the_participants_is_drawn(fraction: float, at_least: int, count: int) -> None:
    """0.07 · 100 is 7.000000000000001 in binary."""
    settings = Settings.model_validate({"fraction-train": float(fraction), "min-participants": at_least})
    scenario = SimpleNamespace(by_name={f"a-{i}": None for i in range(100)}, kind=lambda _: "a")
    drawn = Strategy.sample(SimpleNamespace(settings=settings, scenario=scenario, round=1))  # type: ignore[arg-type]
    assert len(set(drawn)) == len(drawn) == count


def test_a_share_of_each_kind_is_drawn() -> None:
    settings = Settings.model_validate({"fraction-train": 0.25, "sample-by": "kind"})
    counts = {"image": 12, "text": 12, "mm": 8, "one": 1}
    names = {f"{kind}-{i}": None for kind, count in counts.items() for i in range(count)}
    scenario = SimpleNamespace(by_name=names, kind=lambda name: name.partition("-")[0])
    drawn = [
        Strategy.sample(SimpleNamespace(settings=settings, scenario=scenario, round=r))  # type: ignore[arg-type]
        for r in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert Counter(name.partition("-")[0] for name in drawn[0]) == {"image": 3, "text": 3, "mm": 2, "one": 1}


def test_before_its_first_training_a_participant_is_tested_without_fusion(tiny: dict) -> None:
    path = run({**tiny, "algo": "fedafd", "fraction-train": 0.25, "num-server-rounds": 1})
    tested = {p: set(values) for (_, phase, p), values in metrics(path).items() if phase == "evaluate"}
    trained = {p for _, phase, p in metrics(path) if phase == "train" and p != "mean"}
    for name in ("image-0", "text-0", "mm-0", "mm-1"):
        assert any(metric.startswith("local_") for metric in tested[name]) == (name in trained)


def test_missing_participants_are_named_at_the_deadline(tiny: dict) -> None:
    nodes = [{"participant": "image-0"}, {"participant": "text-0 mm-0"}]
    started = time.monotonic()
    with pytest.raises(RunFailed, match="after 1 s no node hosts mm-1; start a SuperNode"):
        run({**tiny, "algo": "local", "round-timeout": 1.0}, node_configs=nodes)
    assert 1 < time.monotonic() - started < 9


def test_no_nodes_at_all_end_by_the_deadline(tiny: dict) -> None:
    with pytest.raises(RunFailed, match="no node hosts image-0, text-0, mm-0, mm-1"):
        run({**tiny, "algo": "local", "round-timeout": 0.5}, num_nodes=0)


def test_two_nodes_may_not_be_the_same_participant(tiny: dict) -> None:
    nodes = [{"participant": "image-0 text-0 mm-0 mm-1"}, {"participant": "image-0"}]
    with pytest.raises(RunFailed, match="two nodes host image-0"):
        run({**tiny, "algo": "local"}, node_configs=nodes)


@pytest.mark.parametrize(("key", "words"), [("code-hash", "runs other code"), ("public-hash", "other public data")])
def test_other_code_or_public_data_end_the_run(key: str, words: str, tiny: dict) -> None:
    def changed(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "query.hello":
            reply.content["config"][key] = "0" * 64
        return reply

    with pytest.raises(RunFailed, match=words):
        run({**tiny, "algo": "local"}, tamper=changed)


@pytest.mark.parametrize("nodes", [1, 3, 10])
def test_any_number_of_nodes_gives_the_same_metrics(nodes: int, tiny: dict) -> None:
    two = run({**tiny, "algo": "fedafd"}, 2)
    other = run({**tiny, "algo": "fedafd", "run-name": "other"}, nodes)
    assert metrics(two) == metrics(other)


def test_named_nodes_give_the_same_metrics(tiny: dict, tmp_path: Path) -> None:
    two = run({**tiny, "algo": "fedafd"}, 2)
    names = ["mm-1", "text-0, image-0", "mm-0"]
    configs = [{"participant": name, "state-dir": str(tmp_path / f"state-{i}")} for i, name in enumerate(names)]
    named = run({**tiny, "algo": "fedafd", "run-name": "named"}, node_configs=configs)
    assert metrics(two) == metrics(named)
    assert (tmp_path / "state-0" / "named" / "mm-1").is_dir() and not (named / "state").exists()


def test_another_seed_gives_other_metrics(tiny: dict) -> None:
    one = run({**tiny, "algo": "local"})
    two = run({**tiny, "algo": "local", "seed": 2, "run-name": "two"})
    assert metrics(one) != metrics(two)


@pytest.mark.parametrize("algo", ["local", "fedafd"])
def test_not_every_round_need_be_tested(algo: str, tiny: dict) -> None:
    often = run({**tiny, "algo": algo, "num-server-rounds": 5, "run-name": "often"})
    path = run({**tiny, "algo": algo, "num-server-rounds": 5, "evaluate-every": 2})
    tests = {r for r, phase, who in metrics(path) if phase == "evaluate" and r > 0}
    assert tests == {2, 4, 5}, "every second round and the last"
    seldom = metrics(path)
    assert all(seldom[key] == value for key, value in metrics(often).items() if key in seldom), "tests change nothing"
    assert len(seldom) < len(metrics(often))
    whole, part = (json.loads((run_folder / "summary.json").read_text()) for run_folder in (often, path))
    assert whole["rounds"] == part["rounds"] == 5 and whole["bytes"] == part["bytes"], "a round is one, tested or not"


def test_each_participant_is_tested_once_a_round(tiny: dict) -> None:
    """At the end of its training, where the method allows: nobody is asked for a test again."""
    asked = set()

    def tamper(message: Message, reply: Message) -> Message:
        asked.add(message.metadata.message_type)
        return reply

    tests = [row for row in rows(run({**tiny, "algo": "local"}, tamper=tamper)) if row["phase"] == "evaluate"]
    assert asked == {"query.hello", "train"}
    assert max(Counter((row["round"], row["participant"]) for row in tests).values()) == 1
    means = [row["metrics"] for row in tests if row["participant"] == "mean"]
    assert len(means) == 2 and all("image/accuracy" in mean and "text/accuracy" in mean for mean in means)


def test_half_of_the_participants_train_and_all_are_tested(tiny: dict) -> None:
    path = run({**tiny, "algo": "fedafd", "fraction-train": 0.5, "num-server-rounds": 4})
    trained = [{p for r, phase, p in metrics(path) if r == n and phase == "train" and p != "mean"} for n in range(1, 5)]
    tested = [{p for r, phase, p in metrics(path) if r == n and phase == "evaluate"} for n in range(1, 5)]
    assert all(len(names) == 2 for names in trained) and len({frozenset(names) for names in trained}) > 1
    assert all(names == {"image-0", "text-0", "mm-0", "mm-1", "mean", "server"} for names in tested)


@pytest.mark.parametrize("algo", ["local", "fedafd"])
def test_a_resumed_run_has_the_metrics_of_an_uninterrupted_one(algo: str, tiny: dict) -> None:
    whole = run({**tiny, "algo": algo, "num-server-rounds": 3, "fraction-train": 0.7, "run-name": "whole"})

    def stop_in_round_3(message: Message, reply: Message) -> Message:
        if message.metadata.group_id == "3":
            raise KeyboardInterrupt
        return reply

    config = {**tiny, "algo": algo, "num-server-rounds": 3, "fraction-train": 0.7}
    with pytest.raises(KeyboardInterrupt):
        run(config, tamper=stop_in_round_3)
    path = Path(tiny["results-dir"]) / "r"
    assert json.loads((path / "run.json").read_text())["status"] == "failed"
    run({**config, "resume": True})
    assert metrics(path) == metrics(whole)
    assert json.loads((path / "run.json").read_text())["status"] == "finished"


def test_a_finished_run_goes_on_for_more_rounds(tiny: dict) -> None:
    run({**tiny, "algo": "fedafd", "num-server-rounds": 1})
    longer = run({**tiny, "algo": "fedafd", "num-server-rounds": 2, "resume": True})
    whole = run({**tiny, "algo": "fedafd", "num-server-rounds": 2, "run-name": "whole"})
    assert metrics(longer) == metrics(whole)


def test_resuming_with_other_settings_is_refused(tiny: dict) -> None:
    run({**tiny, "algo": "fedafd", "num-server-rounds": 1})
    with pytest.raises(UserError, match=r"resume: fedafd.beta was 0.5 in that run and is 0.1 now"):
        run({**tiny, "algo": "fedafd", "resume": True, "fedafd.beta": 0.1})


def test_zero_examples_in_an_evaluation_are_fine(tiny: dict) -> None:
    def empty(message: Message, reply: Message) -> Message:
        if "text-0/evaluate" in reply.content:
            reply.content["text-0/evaluate"] = MetricRecord({"num-examples": 0, "seconds": 0.0})
        return reply

    path = run({**tiny, "algo": "local"}, tamper=on_train(empty))
    assert metrics(path)[(1, "evaluate", "text-0")] == {}


def test_a_site_without_its_data_ends_the_run_before_training(tiny: dict, tmp_path: Path) -> None:
    """The server does not hold private data; the node that lacks them says so when it says hello."""
    text = (Path(__file__).parents[2] / "simulations/scenarios/emoji-tiny.yaml").read_text()
    (tmp_path / "own.yaml").write_text(text.replace("name: glosses", "name: path:letters"))
    with pytest.raises(RunFailed, match="letters"):
        run({**tiny, "algo": "local", "scenario": str(tmp_path / "own.yaml"), "data-path": str(tmp_path)})
    assert not [row for row in rows(Path(tiny["results-dir"]) / "r") if row["phase"] == "train"]


def test_a_site_reads_its_own_data_path(tiny: dict, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "simulations/scenarios/emoji-tiny.yaml").read_text()
    (tmp_path / "own.yaml").write_text(text.replace("name: glosses", "name: path:letters"))
    samples = {split: load("glosses", split) for split in ("train", "test")}
    (tmp_path / "site" / "letters").mkdir(parents=True)
    for split, part in samples.items():
        names = part.classes["label"]
        lines = (
            json.dumps({"text": text, "label": names[label]})
            for text, label in zip(part["text"], part["label"], strict=True)
        )
        (tmp_path / "site" / "letters" / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    nodes = [{"participant": "text-0", "data-path": str(tmp_path / "site")}, {"participant": "image-0 mm-0 mm-1"}]
    config = {**tiny, "algo": "fedafd", "scenario": str(tmp_path / "own.yaml")}
    assert (1, "train", "text-0") in metrics(run(config, node_configs=nodes))


def test_another_thread_count_gives_the_same_metrics_to_rounding(tiny: dict, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "simulations/scenarios/emoji-tiny.yaml").read_text()
    (tmp_path / "two.yaml").write_text(text.replace("dim: 16", "dim: 16\nthreads: 2"))
    one = metrics(run({**tiny, "algo": "fedafd"}))
    two = metrics(run({**tiny, "algo": "fedafd", "scenario": str(tmp_path / "two.yaml"), "run-name": "two"}))
    assert one.keys() == two.keys()
    assert all(two[key] == pytest.approx(one[key], rel=1e-4, abs=1e-4) for key in one)
