"""Who holds which rows: nothing twice, nothing of the public data, pictures whole, held-out rows apart."""

import json
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from fedapps.data import load
from fedapps.holdings import Holdings
from fedapps.scenario import Scenario, load_scenario


def concepts(samples) -> set[int]:  # type: ignore[no-untyped-def]
    return set(np.asarray(samples["concept"]).tolist())


@pytest.mark.parametrize("name", ["emoji-quick", "emoji-tiny"])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_row_is_held_twice_and_no_test_concept_is_trained_on(name: str, seed: int) -> None:
    scenario = load_scenario(name)
    held = Holdings(scenario, seed)
    taken = held.public_rows.tolist()
    for entry in scenario.participants:
        if entry.data.name == "emoji":
            taken += [row for part in held._cut(entry) for row in part.tolist()]
    assert len(taken) == len(set(taken))
    tested = concepts(held.server_test) | concepts(held.test("image-0")) | concepts(held.test("mm-0"))
    trained = concepts(held.public) | concepts(held.train("image-0")) | concepts(held.train("mm-0"))
    assert not tested & trained


def test_public_data_do_not_depend_on_the_seed_and_private_data_do() -> None:
    scenario = load_scenario("emoji-tiny")
    one, two = Holdings(scenario, 1), Holdings(scenario, 2)
    assert one.public_hash == two.public_hash
    assert one.train("image-0")["text"] != two.train("image-0")["text"]


def test_natural_participants_are_tested_on_their_own_vendor() -> None:
    held = Holdings(load_scenario("emoji-tiny"), 1)
    for name in ("mm-0", "mm-1"):
        assert (
            set(held.test(name)["vendor"]) == set(held.train(name)["vendor"])
            and len(set(held.test(name)["vendor"])) == 1
        )


def test_natural_participants_are_tested_on_all_if_they_ask() -> None:
    held = Holdings(load_scenario("muscle-quick"), 1)
    for name in ("tags-0", "subgroup-1", "group-0"):
        assert len(set(held.train(name)["vendor"])) == 1
        assert set(held.test(name)["vendor"]) == set(range(6))


def captioned(folder: Path, pictures: int = 30, captions: int = 5) -> None:
    """Pictures with several captions each, as Flickr30k has them."""
    (folder / "pairs").mkdir(parents=True)
    emoji = load("emoji", "train")
    for split in ("train", "test"):
        lines = []
        for i in range(pictures):
            file = folder / "pairs" / f"{split}-{i}.png"
            Image.fromarray(emoji["image"][i + pictures * (split == "test")].permute(1, 2, 0).numpy()).save(file)
            texts = [f"caption {k} of picture {i} in {split}" for k in range(captions)]
            lines.append(json.dumps({"image": file.name, "text": texts}))
        (folder / "pairs" / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def retrieval(**changes: object) -> Scenario:
    entry = {
        "name": "mm",
        "count": 2,
        "modality": "image-text",
        "task": "retrieval",
        "model": {"image": "cnn", "text": "bag"},
        "data": {"name": "path:pairs", "image-size": 32, **changes},
    }
    public = {"name": "path:./pairs", "image-size": 32, "size": 20}
    return Scenario.model_validate({"name": "own", "participants": [entry], "public": public})


@pytest.mark.parametrize("changes", [{}, {"size": 25}, {"partition": "shards"}])
def test_the_captions_of_a_picture_stay_together(changes: dict, tmp_path: Path) -> None:
    captioned(tmp_path)
    held = Holdings(retrieval(**changes), 1, str(tmp_path))
    parties = [set(np.asarray(s["picture"]).tolist()) for s in (held.train("mm-0"), held.train("mm-1"), held.public)]
    assert all(parties)
    assert not parties[0] & parties[1] and not parties[0] & parties[2] and not parties[1] & parties[2]


def test_own_data_are_taken_whole_on_every_node(tmp_path: Path) -> None:
    """Two sites with different files of one name; each keeps all of its rows."""
    for site, count in (("a", 7), ("b", 12)):
        (tmp_path / site / "mine").mkdir(parents=True)
        for split in ("train", "test"):
            lines = [json.dumps({"text": f"{site} {i}", "label": f"class {i % 3}"}) for i in range(count)]
            (tmp_path / site / "mine" / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    entry = {"name": "text", "count": 2, "modality": "text", "task": "classification", "model": "bag"}
    data = {"name": "path:mine", "label": "label", "partition": "own"}
    scenario = Scenario.model_validate({"name": "own", "participants": [{**entry, "data": data}]})
    assert len(Holdings(scenario, 1, str(tmp_path / "a")).train("text-0")) == 7
    assert len(Holdings(scenario, 1, str(tmp_path / "b")).train("text-1")) == 12


def test_entries_with_the_same_data_share_one_partition() -> None:
    """Two participants of each of five models are no five partitions into two: all classes and rows are dealt out."""
    scenario = load_scenario("mrl-quick")
    data = Holdings(scenario, 0)
    held = [data.train(name) for name in scenario.by_name]
    own = [set(np.unique(rows["group"]).tolist()) for rows in held]
    assert all(len(classes) == 2 for classes in own)
    assert set.union(*own) >= set(range(9)), "participant k has class k, whatever entry it belongs to"
    values = json.loads(scenario.dump())
    for entry in values["participants"]:
        entry["data"] = {"name": "emoji", "label": "group"}
    whole = Scenario.parse(json.dumps(values))
    sizes = [len(Holdings(whole, 0).train(name)) for name in whole.by_name]
    assert max(sizes) - min(sizes) <= 1 and sum(sizes) == len(load("emoji", "train"))


@pytest.mark.parametrize(
    ("name", "column", "classes", "own"), [("cifar10", "label", 10, 2), ("cifar100", "fine_label", 100, 10)]
)
def test_the_published_settings_of_fedmrl_find_their_data(
    name: str, column: str, classes: int, own: int, tmp_path: Path
) -> None:
    """On rows as CIFAR comes from the hub, kept in ``data-path``: every participant has its number of classes."""
    rows = 20 * classes if classes == 100 else 1000
    pixels = np.random.default_rng(0).integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
    table = datasets.Dataset.from_dict(
        {"img": [Image.fromarray(one) for one in pixels], column: [row % classes for row in range(rows)]},
        features=datasets.Features({"img": datasets.Image(), column: datasets.Value("int64")}),
    )
    (tmp_path / name).mkdir()
    for split in ("train", "test"):
        table.to_parquet(tmp_path / name / f"{split}.parquet")
    for participants in (10, 50, 100):
        scenario = load_scenario(f"mrl-paper-{name}-{participants}")
        assert len(scenario.by_name) == participants
        data = Holdings(scenario, 1, str(tmp_path))
        held = [data.train(party) for party in scenario.by_name]
        assert all(len(np.unique(samples["label"])) == own for samples in held)
        assert data.num_classes("cnn5-0") == classes and len(data.test("cnn1-0")) == rows
        assert held[0]["image"][[0]].shape == (1, 3, 32, 32)
