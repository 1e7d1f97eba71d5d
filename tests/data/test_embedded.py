"""The embedded data sets: what is in them, and that no test concept is ever trained on."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedapps import data
from fedapps.data import Samples, digest, emoji, gallery, load, rebuild
from fedapps.errors import UserError

FOLDER = Path(data.__file__).parent


@pytest.fixture(scope="module")
def train() -> Samples:
    return load("emoji", "train")


@pytest.fixture(scope="module")
def test() -> Samples:
    return load("emoji", "test")


def test_files_travel_in_the_bundle():
    files = [path for part in ("emoji", "glosses") for path in (FOLDER / part).iterdir()]
    assert {path.suffix for path in files} <= {".json", ".jsonl", ".md"}
    assert max(path.stat().st_size for path in files) <= 1_000_000
    assert sum(path.stat().st_size for path in files) <= 6_000_000
    assert {"NOTICE.md", "LICENSE.md"} <= {path.name for path in files}


def test_emoji_counts(train, test):
    assert (len(train), len(test)) == (6502, 1561)
    assert len(set(train["concept"])) == 1226 and len(set(test["concept"])) == 294
    vendors = np.bincount(np.concatenate([train["vendor"], test["vendor"]]))
    assert dict(zip(train.classes["vendor"], vendors.tolist(), strict=True)) == {
        "openmoji": 1520,
        "twemoji": 1520,
        "noto": 1452,
        "fluent-emoji-flat": 1426,
        "emojione": 1058,
        "noto-v1": 1087,
    }
    assert [len(train.classes[key]) for key in ("group", "subgroup", "author")] == [9, 98, 96]


def test_no_test_concept_is_trained_on(train, test):
    assert not set(train["concept"]) & set(test["concept"])
    assert not set(train["name"]) & set(test["name"])
    assert not set(train["text"]) & set(test["text"])


def test_emoji_shapes(train, test):
    for part in (train, test):
        n = len(part)
        some = np.array([0, n - 1, 7])
        assert part["image"].shape == (n, 3, 32, 32) and part["image"].dtype == torch.uint8
        for name in ("concept", "vendor", "group", "subgroup", "author"):
            assert part[name].shape == (n,) and part[name].dtype == np.int64
        for name, classes in (("mask", 2), ("scene", 10)):
            pixels = part[name][some]
            assert pixels.shape == (3, 32, 32) and pixels.dtype == torch.int64
            assert len(part.classes[name]) == classes and int(part[name][:].max()) == classes - 1
        assert part["tags:15"].shape == (n, 15) and part["tags:15"].dtype == torch.float32
        assert all(len(part[name]) == n for name in ("text", "name", "tags", "mask", "parts"))
        assert all(text.strip() for text in part["text"])


def test_index_arrays_of_numpy_and_torch(train):
    rows = np.array([5, 1, 5])
    for name in ("image", "mask", "tags:3", "group"):
        assert np.array_equal(np.asarray(train[name][rows]), np.asarray(train[name][torch.from_numpy(rows)]))


def test_emoji_rows_fit_together(train):
    """A concept has the same name, caption, labels in all vendors; the scene is the mask times the group."""
    by_concept: dict[int, set] = {}
    for row, concept in enumerate(train["concept"]):
        facts = (train["name"][row], train["text"][row], train["group"][row], train["subgroup"][row])
        by_concept.setdefault(int(concept), set()).add(facts)
    assert all(len(facts) == 1 for facts in by_concept.values())
    rows = np.arange(0, len(train), 500)
    group = torch.from_numpy(train["group"][rows])
    assert torch.equal(train["scene"][rows], train["mask"][rows] * (group + 1)[:, None, None])
    assert 0.3 < train["mask"][:].float().mean() < 0.7
    outside = train["image"].permute(0, 2, 3, 1)[train["mask"][:] == 0]
    assert outside.float().mean() > 200  # over white, but for the rims


def test_tags_and_commonest_subgroups(train, test):
    for part in (train, test):
        assert part.classes["tags:15"] == train.classes["tags:15"]
        row, tag = (int(i) for i in part["tags:15"].nonzero()[0])
        assert part.classes["tags:15"][tag] in part["tags"][row]
        rows = part.rows_with("subgroup:20")
        assert 0 < len(rows) < len(part)
        assert set(part["subgroup:20"][rows]) <= set(range(20))
        for i in rows[::50]:
            assert part.classes["subgroup:20"][part["subgroup:20"][i]] == part.classes["subgroup"][part["subgroup"][i]]
    counts = train["tags:15"].sum(0)
    assert bool((counts > 90).all())


def test_parts_are_openmojis(train):
    rows = train.rows_with("parts")
    assert set(train["vendor"][rows]) == {0} and len(rows) == 1226
    parts = train["parts"][rows]
    assert parts.dtype == torch.int64 and set(parts.unique().tolist()) == set(range(len(train.classes["parts"])))
    assert ((parts > 0) == (train["mask"][rows] > 0)).float().mean() > 0.97
    assert len(train.rows_with("image")) == len(train)


def test_select_keeps_columns_in_step(train):
    rows = np.array([40, 3, 2000])
    some = train.select(rows)
    assert len(some) == 3 and some["text"] == [train["text"][i] for i in rows]
    assert torch.equal(some["image"], train["image"][rows])
    assert torch.equal(some["scene"][np.array([2])], train["scene"][rows[2:]])
    assert some.rows_with("parts").tolist() == [i for i in range(3) if train["vendor"][rows[i]] == 0]
    assert torch.equal(some.select(np.array([1]))["mask"][:], train["mask"][rows[1:2]])


def test_caption():
    assert emoji.caption("grinning face", ["face", "grin", "happy"]) == "grinning face: grin, happy"
    assert emoji.caption("tent", ["tent"]) == "tent"


def test_glosses():
    for split, count in (("train", 800), ("test", 200)):
        part = load("glosses", split)
        assert np.bincount(part["label"]).tolist() == [count] * 10 == [count] * len(part.classes["label"])
        assert all(part["text"])
    assert not set(load("glosses", "train")["text"]) & set(load("glosses", "test")["text"])


def test_load_is_cached(train):
    assert load("emoji", "train") is train


def test_emoji_loads_in_half_a_second():
    """In a process of its own, pictures decoded; process time, because the box is shared."""
    code = (
        "import time, torch; torch.set_num_threads(1); import fedapps.data as d; t = time.process_time()\n"
        "d.load('emoji', 'train')['image'], d.load('emoji', 'test')['image']; print(time.process_time() - t)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.5


def test_refusals(train):
    for call, message in (
        (lambda: load("emojis", "train"), "unknown data set 'emojis' (did you mean 'emoji'?)"),
        (lambda: load("emoji", "dev"), "a split is 'train' or 'test', not 'dev'"),  # type: ignore[arg-type]
        (lambda: load("emoji", "train", columns={"image": "img"}), "'emoji' is embedded"),
        (lambda: train["grup"], "no column 'grup' in the data (did you mean 'group'?)"),
        (lambda: train.rows_with("tag:9"), "no column 'tag:9'"),
    ):
        with pytest.raises(UserError) as error:
            call()
        assert message in str(error.value) and "\n" not in str(error.value)


def test_digest_depends_on_content_and_order(train):
    rows, names = np.arange(0, 6000, 300), ["image", "text", "group", "mask", "tags"]
    some, same, turned, other = (train.select(r) for r in (rows, rows, rows[::-1], rows))
    assert digest(some, names) == digest(same, names)
    for name in names:
        assert digest(turned, [name]) != digest(some, [name])
    other["image"][3, 0, 0, 0] ^= 1
    assert digest(other, ["image"]) != digest(some, ["image"])


def test_gallery_ranks_pictures_and_captions_once(train):
    rows = np.flatnonzero(np.isin(train["concept"], train["concept"][:5]))
    images, texts = gallery(train, rows)
    assert images.tolist() == rows.tolist() and len(texts) == 5
    assert set(train["concept"][texts]) == set(train["concept"][rows])


def test_rebuild_keeps_one_picture_a_meaning():
    def row(code: str, name: str, **more: str) -> dict:
        return {
            "hexcode": code,
            "annotation": name,
            "tags": "a, b",
            "group": "people-body",
            "subgroups": "person",
            "openmoji_author": "x",
            "skintone": "",
        } | more

    table = [
        row("1F9D1", "person"),
        row("1F9D1-1F3FB", "person: light skin tone", skintone="1"),
        row("1F468-200D-1F393", "man student"),
        row("1F471-200D-2640-FE0F", "woman: blond hair"),
        row("1F6B6-200D-27A1-FE0F", "person walking: facing right"),
        *(row(f"1F1E6-{i}", f"flag {i}", subgroups="country-flag", group="flags") for i in range(8)),
    ]
    concepts = rebuild.choose(table)
    assert [c["name"] for c in concepts] == ["person", "flag 0", "flag 4"]
    assert not any(c["test"] for c in concepts)  # too few in a subgroup to hold one out
