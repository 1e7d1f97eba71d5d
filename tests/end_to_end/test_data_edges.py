"""Participants with hardly any data, without some classes, without tests, or with data that are odd: whole runs."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from fedapps.data import load
from fedapps.errors import RunFailed, UserError
from fedapps.methods import METHODS
from fedapps.results.folder import read_rows
from fedapps.results.plots import plot_runs
from fedapps.results.table import result_table
from simulations.in_process import run
from tests.end_to_end.flower import metrics

TRAIN = {"learning-rate": 0.003, "batch-size": 32}
LABELS = {"classification": "group", "multilabel": "tags:4", "segmentation": "parts"}
Change = Callable[[Path], object]


# ------------------------------------------------------------------------------------------ federations


def participant(name: str, task: str, data: Mapping[str, Any], algo: str, **changes: Any) -> dict[str, Any]:
    """One that the method can have: pictures with a label, or with captions for retrieval."""
    towers = METHODS[algo].needs.towers
    image = {"name": "unified"} if towers else {"name": "cnn", "width": 4}  # the latter with BatchNorm
    text = {"name": "unified" if towers else "bag", "buckets": 64}
    modality = "image-text" if task == "retrieval" else "image"
    model = {"image": image, "text": text} if task == "retrieval" else {"image": image}
    entry = {"name": name, "modality": modality, "task": task, "model": model, "data": dict(data), "train": TRAIN}
    return {**entry, "unit": False, **changes}


def federation(algo: str, participants: list[dict[str, Any]], public: int = 5) -> dict[str, Any]:
    """All that any method needs: few public samples, a server's task on them, shared models."""
    models = {"image": {"name": "cnn", "width": 4}, "text": {"name": "bag", "buckets": 64}}
    tests = {"name": "emoji", "one-per": "concept", "test-size": 20}
    return {
        "dim": 64 if METHODS[algo].needs.towers else 8,
        "settings": {"num-server-rounds": 2, "fedmuscle.num-sampled": 1, "fedmrl.d1": 4},
        "participants": participants,
        "public": {"name": "emoji", "size": public, "one-per": "concept"},
        "shared": models,
        "server": {"modality": "image-text", "task": "retrieval", "model": models, "test": tests, "train": TRAIN},
    }


def result(folder: Path, algo: str, scenario: Mapping[str, Any], **options: Any) -> Path:
    """The run folder of a run in which nobody was left out."""
    (folder / "edges.yaml").write_text(yaml.safe_dump(dict(scenario)))
    names = {"algo": algo, "scenario": str(folder / "edges.yaml"), "results-dir": str(folder / "runs"), "run-name": "r"}
    path = run({**names, "data-path": str(folder), "seed": 1, **options})
    assert not [row for row in read_rows(path / "metrics.jsonl") if "error" in row]
    return path


def examples(path: Path, phase: str) -> dict[str, int]:
    rows = [row for row in read_rows(path / "metrics.jsonl") if row["phase"] == phase and "num_examples" in row]
    return {row["participant"]: row["num_examples"] for row in rows}


def words(folder: Path, train: Iterable[str], test: Iterable[str] | None, name: str = "mine") -> None:
    """A site's texts in ``folder/name``, with a class each; without ``test`` it has training data alone."""
    (folder / name).mkdir()
    for split, labels in (("train", train), ("test", test)):
        if labels is not None:
            lines = [json.dumps({"text": f"{label} {split} {i}", "label": label}) for i, label in enumerate(labels)]
            (folder / name / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def texts(algo: str, name: str = "mine", encoder: str = "bag", **data: Any) -> dict[str, Any]:
    """Three who share out the texts of ``words``."""
    model = {"name": "unified" if METHODS[algo].needs.towers else encoder, "buckets": 64}
    data = {"name": f"path:{name}", "label": "label", **data}
    return participant(name, "classification", data, algo, modality="text", model=model, count=3)


def pictures(folder: Path, train: list[Any], test: list[Any], label: str = "label") -> None:
    """A site's pictures in ``folder/mine`` with their labels; an array is a mask, a file of its own."""
    (folder / "mine").mkdir()
    drawn = load("emoji", "train")["image"][: len(train) + len(test)]
    for split, labels, images in (("train", train, drawn[: len(train)]), ("test", test, drawn[len(train) :])):
        lines = []
        for i, (value, image) in enumerate(zip(labels, images, strict=True)):
            file = folder / "mine" / f"{split}-{i}.png"
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(file)
            if isinstance(value, np.ndarray):
                Image.fromarray(value).save(file.with_suffix(".mask.png"))
                value = file.with_suffix(".mask.png").name
            lines.append(json.dumps({"image": file.name, "text": f"picture {i} to {split}", label: value}))
        (folder / "mine" / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def mine(task: str, label: str | None = "label", **data: Any) -> dict[str, Any]:
    """Two who share out the pictures of ``pictures``, each alone."""
    data = {"name": "path:mine", **({"label": label} if label else {}), **data}
    return {"dim": 8, "participants": [participant("mine", task, data, "local", count=2)]}


# --------------------------------------------------------------------------------------- hardly any data


@pytest.mark.parametrize("algo", METHODS)
def test_participants_with_one_or_three_samples_train(algo: str, tmp_path: Path) -> None:
    """And with two public samples, the fewest that are allowed; through BatchNorm where the method may have it."""
    tasks = METHODS[algo].needs.tasks or (*LABELS, "retrieval")
    tasks = [task for task in tasks if not METHODS[algo].needs.same_model or task == "classification"]
    entries = []
    for task in tasks:
        for name, size in (("one", 1), ("three", 3), ("many", 24)):
            data = {"name": "emoji", "size": size, "min-size": 1, "test-size": 20}
            data |= {"label": LABELS[task]} if task in LABELS else {}
            entries.append(participant(f"{name}-{task}", task, data, algo))
    path = result(tmp_path, algo, federation(algo, entries, public=2))
    trained = examples(path, "train") | examples(path, "alone")
    assert trained == {f"{e['name']}-0": e["data"]["size"] for e in entries}
    got = metrics(path)
    assert all(got[2, "evaluate", name]["loss"] >= 0 for name, size in trained.items() if "retrieval" not in name)
    assert all(got[2, "evaluate", f"{e['name']}-0"] for e in entries)


@pytest.mark.parametrize("algo", ["fedavg", "sage"])
def test_one_sample_trains_a_timm_model_with_batchnorm(algo: str, tmp_path: Path) -> None:
    """Its maps have shrunk to one pixel, which has no variance."""
    model = {"image": {"name": "timm:mobilenetv3_small_050"}}
    entries = [
        participant(name, "classification", {"name": "emoji", "label": "group", "size": size, "min-size": 1}, algo)
        for name, size in (("one", 1), ("many", 24))
    ]
    entries = [{**e, "model": model, "data": {**e["data"], "test-size": 20}} for e in entries]
    path = result(tmp_path, algo, federation(algo, entries))
    assert examples(path, "train") == {"one-0": 1, "many-0": 24}


def test_one_public_sample_is_refused(tmp_path: Path) -> None:
    entry = participant("a", "classification", {"name": "emoji", "label": "group"}, "local")
    with pytest.raises(UserError, match="public: 1 sample is nothing to compare by; take a larger `size`"):
        result(tmp_path, "local", federation("local", [entry], public=1))


@pytest.mark.parametrize(("rows", "least"), [(1, 2), (6, 9)])
def test_too_few_rows_of_a_site_s_own_are_told_before_training(rows: int, least: int, tmp_path: Path) -> None:
    words(tmp_path, ["a", "b", "c"][:rows] * -(-rows // 3), ["a", "b"])
    entry = texts("local", partition="own", **{"min-size": least})
    line = f"participants: mine: data: partition own has {rows} rows, fewer than min-size {least}"
    with pytest.raises(RunFailed, match=line):
        result(tmp_path, "local", {"participants": [entry]})


# ------------------------------------------------------------------------------------- classes that are absent


@pytest.mark.parametrize("algo", METHODS)
def test_classes_that_one_or_all_lack(algo: str, tmp_path: Path) -> None:
    """The first class is in the test alone; of the others each participant has two, and one class is with one alone."""
    words(tmp_path, [*"bcde" * 8], [*"abcde" * 4])
    data = {"partition": "pathological", "classes": 2}
    path = result(tmp_path, algo, federation(algo, [texts(algo, **data)], public=20))
    got = metrics(path)
    assert all(0 <= got[2, "evaluate", f"mine-{i}"]["accuracy"] < 100 for i in range(3))
    assert all(got[2, "evaluate", f"mine-{i}"]["loss"] > 0 for i in range(3))


@pytest.mark.parametrize("algo", [algo for algo in METHODS if "multilabel" in (METHODS[algo].needs.tasks or LABELS)])
def test_labels_that_hardly_anybody_has(algo: str, tmp_path: Path) -> None:
    """The first label is in the test alone, one in a single training row, one in each of them."""
    pictures(tmp_path, [["b", "c", "d"], *[["b", "c"], ["c"]] * 5], [["a", "b"], ["c"], ["d"]])
    entries = [participant("mine", "multilabel", {"name": "path:mine", "label": "label"}, algo, count=2)]
    got = metrics(result(tmp_path, algo, federation(algo, entries)))
    assert all(got[2, "evaluate", f"mine-{i}"]["labels_left_out"] == 0 for i in range(2))


def test_a_hundred_of_a_skewed_dirichlet_train(tmp_path: Path) -> None:
    """Most lack most classes, and some have a row or two; with too large a ``min-size`` nobody starts."""
    data = {"name": "glosses", "label": "label", "partition": "dirichlet", "alpha": 0.1, "test-size": 10}

    def hundred(least: int) -> dict[str, Any]:
        entry = {**texts("fedproto"), "count": 100, "data": {**data, "min-size": least}}
        return federation("fedproto", [entry])

    found = examples(result(tmp_path, "fedproto", hundred(1), **{"evaluate-every": 2}), "train")
    assert len(found) == 100 and min(found.values()) >= 1 and sum(found.values()) == 8000
    line = "participants: mine: data: partition .* fewer than min-size 30 .kind dirichlet, num 100, alpha 0.1, by label"
    with pytest.raises(RunFailed, match=line):
        result(tmp_path, "fedproto", hundred(30), **{"run-name": "q"})


# ------------------------------------------------------------------------------------------ no test data


@pytest.mark.parametrize("algo", METHODS)
def test_a_site_without_test_data_takes_part(algo: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It trains, its rows say 0 examples, and means, summary, table and plots are of the others."""
    words(tmp_path, [*"abc" * 8], None)
    words(tmp_path, [*"abc" * 8], [*"abc" * 4], "tested")
    untested, tested = (texts(algo, name, "bigru") for name in ("mine", "tested"))  # bigru cannot take no texts at all
    path = result(tmp_path, algo, federation(algo, [untested, tested], public=20))
    assert "mine-0 has no test data: it trains and is not tested" in caplog.text
    assert "tested-0 has no test" not in caplog.text
    got, tests = metrics(path), examples(path, "evaluate")
    assert tests == {f"mine-{i}": 0 for i in range(3)} | {f"tested-{i}": 12 for i in range(3)}
    assert all(got[2, "evaluate", f"mine-{i}"] == {} for i in range(3))
    assert {f"mine-{i}": 8 for i in range(3)}.items() <= examples(path, "train").items()
    assert not [name for name in got[2, "evaluate", "mean"] if name.startswith("mine/")]
    assert got[2, "evaluate", "mean"]["tested/accuracy"] >= 0
    summary = json.loads((path / "summary.json").read_text())
    assert summary["kinds"]["mine"]["final"]["mean"] == {} and summary["kinds"]["tested"]["final"]["mean"]
    assert result_table(summary).row_count == 2 + (summary["server"] is not None)
    assert all(file.stat().st_size > 0 for file in plot_runs([path]))


@pytest.mark.parametrize("task", [*LABELS, "retrieval"])
def test_no_test_data_of_any_task(task: str, tmp_path: Path) -> None:
    labels = {"multilabel": [["a"], ["a", "b"]], "segmentation": [mask(0), mask(1)]}.get(task, ["a", "b"])
    label = {"segmentation": "mask", "retrieval": None}.get(task, "label")
    pictures(tmp_path, labels * 4, [], label or "label")
    path = result(tmp_path, "local", mine(task, label))
    assert examples(path, "evaluate") == {"mine-0": 0, "mine-1": 0}
    assert metrics(path)[10, "train", "mine-0"]["task_loss"] >= 0


def test_a_server_s_own_test_must_be_there(tmp_path: Path) -> None:
    pictures(tmp_path, ["a", "b"] * 4, [])
    scenario = federation("local", [participant("a", "classification", {"name": "emoji", "label": "group"}, "local")])
    scenario["server"]["test"] = {"name": "path:mine"}
    with pytest.raises(UserError, match="server: test: path:mine has no test rows"):
        result(tmp_path, "local", scenario)


# ------------------------------------------------------------------------------- tests of which little is known


def mask(value: int) -> np.ndarray:
    return np.full((32, 32), value, dtype=np.uint8)


@pytest.mark.parametrize(
    ("task", "train", "test", "known"),
    [
        ("classification", ["a", "b"], ["a"], {"accuracy", "macro_f1", "loss"}),
        ("multilabel", [["a"], ["a", "b"]], [["a"]], {"map", "macro_f1", "micro_f1", "loss", "labels_left_out"}),
        ("multilabel", [["a"], ["a", "b"]], [[]], {"loss", "labels_left_out"}),
        ("segmentation", [mask(0), mask(1)], [mask(1)], {"miou", "pixel_accuracy", "loss"}),
        ("segmentation", [mask(0), mask(1)], [mask(255)], set()),
        ("retrieval", ["a", "b"], ["a"], {"r1_sum", "r1_sum_5fold", "ties"}),
    ],
)
def test_a_metric_that_is_not_defined_is_left_out(
    task: str, train: list[Any], test: list[Any], known: set[str], tmp_path: Path
) -> None:
    label = {"segmentation": "mask", "retrieval": None}.get(task, "label")
    pictures(tmp_path, train * 4, test, label or "label")
    path = result(tmp_path, "local", mine(task, label), **{"num-server-rounds": 1})
    found = metrics(path)[1, "evaluate", "mine-0"]
    extra = {"accuracy_own_mix"} if task == "classification" else set()
    assert known <= set(found) and (task == "retrieval" or set(found) <= known | extra)
    if task == "multilabel":
        assert found["labels_left_out"] == 2 - len(test[0])
    assert examples(path, "evaluate") == {"mine-0": 1, "mine-1": 1}


def test_a_mean_says_over_how_many_it_goes(tmp_path: Path) -> None:
    """The only class of the test is one that one participant of three has never met: it has no accuracy_own_mix."""
    words(tmp_path, [*"abc" * 8], [*"a" * 4])
    path = result(tmp_path, "local", {"participants": [texts("local", partition="pathological", classes=2)]})
    final = json.loads((path / "summary.json").read_text())["kinds"]["mine"]["final"]
    having = [i for i in range(3) if "accuracy_own_mix" in metrics(path)[10, "evaluate", f"mine-{i}"]]
    assert 0 < len(having) < 3 and final["over"] == {"accuracy_own_mix": len(having)}


# ----------------------------------------------------------------------------------------------- odd samples


def test_texts_that_are_empty_or_very_long_train(tmp_path: Path) -> None:
    words(tmp_path, [*"ab" * 8], [*"ab" * 4])
    file = tmp_path / "mine" / "train.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row, text in zip(rows, ("", "  \n", "?!", "word " * 100_000, "w" * 100_000), strict=False):
        row["text"] = text
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    models = [{"name": name, "buckets": 64} for name in ("bag", "bigru", "transformer", "unified")]
    entries = [{**texts("local"), "name": model["name"], "count": 1, "model": model} for model in models]
    path = result(tmp_path, "local", {"dim": 64, "participants": entries}, **{"num-server-rounds": 1})
    assert sum(examples(path, "train").values()) == 16 and len(examples(path, "train")) == 4


def cut(folder: Path) -> None:
    content = (folder / "train-5.png").read_bytes()
    (folder / "train-5.png").write_bytes(content[: len(content) // 2])


def turned(folder: Path) -> None:
    content = bytearray((folder / "train-5.png").read_bytes())
    content[len(content) // 2] ^= 255
    (folder / "train-5.png").write_bytes(content)


NO_PICTURE = "participants: mine: data: row 5 of column 'image' of 'path:mine' cannot be read as a picture: "


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (cut, f"{NO_PICTURE}image file is truncated"),
        (turned, NO_PICTURE),
        (lambda folder: (folder / "train-5.png").write_text("words"), f"{NO_PICTURE}cannot identify image file"),
        (lambda folder: (folder / "train-5.png").unlink(), f"{NO_PICTURE}.*No such file"),
        (
            lambda folder: Image.new("RGB", (9, 9)).save(folder / "train-5.png"),
            "participants: mine: data: the pictures of 'path:mine' differ in size: set `image-size`",
        ),
    ],
    ids=["cut", "turned", "words", "gone", "small"],
)
def test_a_broken_picture_is_named_before_training(spoil: Change, line: str, tmp_path: Path) -> None:
    pictures(tmp_path, ["a", "b"] * 4, ["a", "b"])
    spoil(tmp_path / "mine")
    with pytest.raises(RunFailed, match=line) as failed:
        result(tmp_path, "local", mine("classification"))
    assert "\n" not in str(failed.value)
    assert not metrics(tmp_path / "runs" / "r")


@pytest.mark.parametrize("whose", ["public", "server: test"])
def test_a_broken_picture_of_the_server_s_is_named_before_training(whose: str, tmp_path: Path) -> None:
    pictures(tmp_path, ["a", "b"] * 4, ["a", "b"])
    (tmp_path / "mine" / f"{'train' if whose == 'public' else 'test'}-1.png").write_text("words")
    scenario = federation("local", [participant("a", "classification", {"name": "emoji", "label": "group"}, "local")])
    if whose == "public":
        scenario["public"] = {"name": "path:mine"}
    else:
        scenario["server"]["test"] = {"name": "path:mine"}
    with pytest.raises(UserError, match="data: row 1 of column 'image' of 'path:mine' cannot be read as a picture"):
        result(tmp_path, "local", scenario)


@pytest.mark.parametrize(
    ("task", "train", "line"),
    [
        ("classification", "a", "label column 'label' has one class only"),
        ("segmentation", mask(0), "task segmentation: num_classes: Input should be greater than or equal to 2, got 1"),
    ],
)
def test_a_label_column_with_one_class_is_told_before_training(
    task: str, train: Any, line: str, tmp_path: Path
) -> None:
    label = "mask" if task == "segmentation" else "label"
    pictures(tmp_path, [train] * 4, [train] * 2, label)
    with pytest.raises(RunFailed, match=line):
        result(tmp_path, "local", mine(task, label))


def test_pictures_without_a_pixel_that_counts_change_nothing(tmp_path: Path) -> None:
    """A batch of masks that are all void has no loss; a mean over none would be NaN, and so would the model."""
    pictures(tmp_path, [mask(255)] * 6 + [mask(0), mask(1)] * 3, [mask(0), mask(1)], "mask")
    scenario = mine("segmentation", "mask")
    scenario["participants"][0]["train"] = {**TRAIN, "batch-size": 2}
    path = result(tmp_path, "local", scenario)
    assert torch.tensor(metrics(path)[10, "evaluate", "mine-0"]["loss"]).isfinite()
