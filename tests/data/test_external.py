"""Data sets of others: small files of the real formats, made of embedded pictures."""

import json
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fedapps.data import Samples, gallery, load
from fedapps.errors import UserError


@pytest.fixture(scope="module")
def emoji() -> Samples:
    return load("emoji", "train").select(np.arange(8))


@pytest.fixture(autouse=True)
def _quiet_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def picture(samples: Samples, row: int) -> Image.Image:
    return Image.fromarray(samples["image"][row].permute(1, 2, 0).numpy())


def table(emoji: Samples) -> datasets.Dataset:
    """As Flickr30k or CIFAR come: pictures, a class label, several captions and several labels a row."""
    rows = {
        "img": [picture(emoji, i) for i in range(8)],
        "fine_label": [i % 3 for i in range(8)],
        "captions": [[emoji["text"][i], emoji["name"][i] + "!"] for i in range(8)],
        "writer": ["ann", "bob"] * 4,
        "objects": [["cat"], ["cat", "dog"]] * 4,
        "segmentation": [Image.fromarray(emoji["mask"][[i]][0].numpy().astype(np.uint8)) for i in range(8)],
    }
    text = datasets.Value("string")
    features = {
        "img": datasets.Image(),
        "fine_label": datasets.ClassLabel(names=["u", "v", "w"]),
        "captions": datasets.Sequence(text),
        "writer": text,
        "objects": datasets.Sequence(text),
        "segmentation": datasets.Image(),
    }
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def parquet(emoji: Samples, folder: Path) -> str:
    folder.mkdir()
    table(emoji).to_parquet(folder / "train-0.parquet")
    table(emoji).select(range(2)).to_parquet(folder / "test-0.parquet")
    return f"path:{folder}"


def test_parquet_with_mapped_columns(emoji, tmp_path):
    columns = {"image": "img", "label": "fine_label", "writer": "writer", "objects": "objects", "mask": "segmentation"}
    name = parquet(emoji, tmp_path / "flickr")
    train = load(name, "train", columns=columns)
    assert len(train) == 8 and len(load(name, "test", columns=columns)) == 2
    assert torch.equal(train["image"][np.array([3, 0])], emoji["image"][[3, 0]])
    assert torch.equal(train["image"][torch.tensor([5])], emoji["image"][[5]])
    assert torch.equal(train["mask"][np.array([2])], emoji["mask"][[2]])
    assert train["label"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1] and train.classes["label"] == ["u", "v", "w"]
    assert train.classes["mask"] == ["0", "1"]
    assert train["writer"].tolist() == [0, 1] * 4 and train.classes["writer"] == ["ann", "bob"]
    assert train["objects"].tolist() == [[1, 0], [1, 1]] * 4 and train.classes["objects"] == ["cat", "dog"]
    assert train["concept"].tolist() == list(range(8))


def test_each_caption_is_a_row(emoji, tmp_path):
    name = parquet(emoji, tmp_path / "flickr")
    train = load(name, "train", columns={"image": "img", "text": "captions", "label": "fine_label"})
    assert len(train) == 16 and train["text"][3] == emoji["name"][1] + "!"
    assert train["picture"].tolist() == train["concept"].tolist() == sorted(list(range(8)) * 2)
    assert train["label"].tolist()[:4] == [0, 0, 1, 1]
    assert torch.equal(train["image"][np.array([2, 3])], emoji["image"][[1, 1]])
    images, texts = gallery(train, np.arange(16))
    assert images.tolist() == list(range(0, 16, 2)) and texts.tolist() == list(range(16))


def test_data_path_stands_in_for_the_hub(emoji, tmp_path):
    parquet(emoji, tmp_path / "flickr30k")
    columns = {"image": "img", "label": "fine_label"}
    for where in (tmp_path, tmp_path / "flickr30k"):
        assert len(load("hf:someone/flickr30k", "test", data_path=str(where), columns=columns)) == 2
    assert len(load("path:flickr30k", "train", data_path=str(tmp_path), columns=columns)) == 8


def test_data_path_without_the_folder_loads_nothing_else(emoji, tmp_path):
    parquet(emoji, tmp_path / "flickr30k")
    datasets.DatasetDict(train=table(emoji)).save_to_disk(str(tmp_path / "saved"))
    for where in (tmp_path, tmp_path / "saved", tmp_path / "flickr30k"):
        line = f"there is no folder {where / 'ag_news'} for 'hf:fancyzhx/ag_news': data-path must hold a folder of that"
        with pytest.raises(UserError, match=line):
            load("hf:fancyzhx/ag_news", "train", data_path=str(where))


@pytest.mark.parametrize("where", ["", "flickr-30K"])
def test_a_folder_for_the_hub_may_spell_its_name_otherwise(emoji, tmp_path, where):
    datasets.DatasetDict(train=table(emoji)).save_to_disk(str(tmp_path / "flickr-30K"))
    saved = load("hf:a/flickr_30k", "train", data_path=str(tmp_path / where), columns={"label": "writer"})
    assert len(saved) == 8


def test_home_is_told_before_data_path(emoji, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    parquet(emoji, tmp_path / "mine")
    assert len(load("path:~/mine", "train", data_path=str(tmp_path / "data"))) == 8
    with pytest.raises(UserError, match=f"there is no {tmp_path}/data/~nobody-of-that-name/mine for"):
        load("path:~nobody-of-that-name/mine", "train", data_path="~/data")


def test_a_relative_path_hangs_on_no_process_s_own_folder(emoji, tmp_path, monkeypatch):
    """The ServerApp and each node have one of their own, and none is where the run was typed."""
    parquet(emoji, tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^data: 'path:mine' is a relative path: write it absolute, or set data-path="):
        load("path:mine", "train")
    assert len(load("path:mine", "train", ".")) == 8


def test_integer_labels_are_the_distinct_values_of_all_splits(tmp_path):
    for split, labels in (("train", [30_000_000, 7, 7]), ("test", [2, 7])):
        datasets.Dataset.from_dict({"label": labels}).to_parquet(tmp_path / f"{split}.parquet")
    train, test = (load(f"path:{tmp_path}", split) for split in ("train", "test"))
    assert train.classes["label"] == test.classes["label"] == ["2", "7", "30000000"]
    assert train["label"].tolist() == [2, 1, 1] and test["label"].tolist() == [0, 1]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_tables_beside_pictures_as_coco_has_them(emoji, tmp_path, suffix):
    for split, rows in (("train", [0, 1, 2]), ("test", [3, 4])):
        (tmp_path / f"{split}2014").mkdir()
        files = [f"{split}2014/COCO_{split}2014_{i}.png" for i in rows]
        for i, file in zip(rows, files, strict=True):
            picture(emoji, i).save(tmp_path / file)
        lines = datasets.Dataset.from_dict({"image": files, "text": [emoji["name"][i] for i in rows]})
        getattr(lines, {"jsonl": "to_json"}.get(suffix, f"to_{suffix}"))(tmp_path / f"{split}.{suffix}")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / f"train.{suffix}").write_text("hidden")
    train, test = (load(f"path:{tmp_path}", split) for split in ("train", "test"))
    assert (train["text"], test["text"]) == (emoji["name"][:3], emoji["name"][3:5])
    assert torch.equal(test["image"][np.arange(2)], emoji["image"][3:5])


def test_jsonl_with_picture_paths(emoji, tmp_path):
    for i in range(3):
        picture(emoji, i).save(tmp_path / f"{i}.png")
    lines = [{"image": f"{i}.png", "text": emoji["name"][i], "label": i + 1, "concept": 70 + i} for i in range(3)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    train = load(f"path:{tmp_path / 'train.jsonl'}", "train")
    assert train["text"] == emoji["name"][:3] and train["concept"].tolist() == [70, 71, 72]
    assert train["label"].tolist() == [0, 1, 2] and train.classes["label"] == ["1", "2", "3"]
    assert torch.equal(train["image"][np.arange(3)], emoji["image"][:3])


def test_image_folder_with_classes(emoji, tmp_path):
    for split, rows in (("train", range(6)), ("test", range(6, 8))):
        for i in rows:
            place = tmp_path / "pictures" / split / ("even" if i % 2 == 0 else "odd")
            place.mkdir(parents=True, exist_ok=True)
            picture(emoji, i).save(place / f"{i}.png")
    train, test = (load(f"path:{tmp_path / 'pictures'}", split) for split in ("train", "test"))
    assert (len(train), len(test)) == (6, 2) and train.classes["label"] == ["even", "odd"]
    assert train["label"].tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.equal(train["image"][np.array([1])], emoji["image"][[2]])


def test_what_save_to_disk_wrote(emoji, tmp_path):
    datasets.DatasetDict(train=table(emoji), validation=table(emoji).select([0])).save_to_disk(str(tmp_path / "saved"))
    columns = {"image": "img", "label": "writer"}
    assert len(load(f"path:{tmp_path / 'saved'}", "train", columns=columns)) == 8
    test = load(f"path:{tmp_path / 'saved'}", "test", columns=columns)
    assert len(test) == 1 and test.classes["label"] == ["ann", "bob"]  # classes are those of all splits


def test_pictures_of_other_sizes(emoji, tmp_path):
    wide, tall = Image.new("RGB", (60, 30), "red"), Image.new("L", (20, 44), 7)
    wide.paste("blue", (15, 0, 45, 30))  # the middle square
    rows = {"image": [wide, tall]}
    datasets.Dataset.from_dict(rows, features=datasets.Features({"image": datasets.Image()})).to_parquet(
        tmp_path / "train.parquet"
    )
    name = f"path:{tmp_path / 'train.parquet'}"
    both = load(name, "train", image_size=24)["image"][np.arange(2)]
    assert both.shape == (2, 3, 24, 24) and both.dtype == torch.uint8
    assert both[0, 2, :, 1:-1].min() > 200 and int(both[1].min()) == int(both[1].max()) == 7
    with pytest.raises(UserError, match="differ in size: set `image-size`"):
        load(name, "train")["image"][np.arange(2)]


def test_usual_names_of_columns_need_no_mapping(emoji, tmp_path):
    train = load(parquet(emoji, tmp_path / "cifar100"), "train")  # it has img and fine_label
    assert torch.equal(train["image"][np.array([3])], emoji["image"][[3]])
    assert train["label"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


def test_grey_pictures_get_three_channels(tmp_path):
    grey = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["0", "1"])})
    rows = datasets.Dataset.from_dict({"image": [grey, grey], "label": [0, 1]}, features=features)
    rows.to_parquet(tmp_path / "train.parquet")
    pictures = load(f"path:{tmp_path}", "train")["image"][np.array([1])]
    assert pictures.shape == (1, 3, 3, 4) and (pictures == torch.arange(12).reshape(3, 4)).all()


@pytest.mark.parametrize(("file", "kind"), [("a.png", np.uint16), ("a.tiff", np.uint16), ("a.tiff", np.int32)])
def test_16_bits_of_grey_become_8(tmp_path, file, kind):
    grey = np.arange(12).reshape(3, 4) * 20
    wide = grey * 257 + 100  # 100 / 257 is rounded away
    Image.fromarray(wide.astype(kind)).save(tmp_path / file)
    (tmp_path / "train.jsonl").write_text(json.dumps({"image": file, "mask": file}))
    train = load(f"path:{tmp_path}/train.jsonl", "train")
    assert (train["image"][np.arange(1)] == torch.from_numpy(grey)).all()
    assert train["mask"][np.arange(1)].tolist() == [wide.tolist()]  # classes, not greys


@pytest.mark.parametrize(("kind", "start"), [(np.int32, -1), (np.int32, 65530), (np.float32, 0)])
def test_greys_of_other_ranges_are_refused(tmp_path, kind, start):
    Image.fromarray((np.arange(12).reshape(3, 4) + start).astype(kind)).save(tmp_path / "a.tiff")
    (tmp_path / "train.jsonl").write_text(json.dumps({"image": "a.tiff"}))
    line = f"cannot be read as a picture: greys must be whole .*, not {kind.__name__} from {start} to {start + 11}"
    with pytest.raises(UserError, match=line):
        load(f"path:{tmp_path}/train.jsonl", "train")["image"][np.arange(1)]


def test_nested_lists_are_pictures_if_they_are_bytes(tmp_path):
    def read(picture: object, key: str = "image") -> torch.Tensor:
        file = tmp_path / f"{abs(hash(str(picture)))}.jsonl"
        file.write_text(json.dumps({key: picture}))
        return load(f"path:{file}", "train")[key][np.arange(1)]

    colour = np.arange(24).reshape(2, 4, 3)
    assert torch.equal(read(colour.tolist())[0], torch.from_numpy(colour).permute(2, 0, 1).to(torch.uint8))
    assert read([[False, True]], "mask").tolist() == [[[0, 1]]]
    whole = "column 'image' of .* cannot be read as a picture: nested lists must be of whole numbers from 0 to 255"
    for picture in ((colour / 24).tolist(), (colour + 240).tolist(), (colour - 1).tolist(), [[True, False]], [["a"]]):
        with pytest.raises(UserError, match=whole):
            read(picture)
    for picture, line in ((np.zeros((3, 8, 8), int).tolist(), r"not \[3, 8, 8\]"), ([[1, 2], [3]], "inhomogeneous")):
        with pytest.raises(UserError, match=line):
            read(picture)


@pytest.mark.parametrize(
    ("file", "test"), [("csv", None), ("csv", ""), ("csv", "text,label\n"), ("jsonl", ""), ("jsonl", "\n")]
)
def test_a_site_may_have_no_test_rows(tmp_path, file, test):
    train = "text,label\none,a\ntwo,b\n" if file == "csv" else '{"text": "one", "label": "a"}\n' * 2
    (tmp_path / f"train.{file}").write_text(train.replace('a"}\n', 'b"}\n', 1))
    if test is not None:
        (tmp_path / f"test.{file}").write_text(test)
    empty, train = (load(f"path:{tmp_path}", split) for split in ("test", "train"))
    assert (len(empty), len(train)) == (0, 2) and empty.classes == train.classes == {"label": ["a", "b"]}
    assert empty["text"] == [] and len(empty["label"]) == 0


def test_rows_of_a_split_that_is_not_known_are_no_missing_test(tmp_path):
    rows = datasets.Dataset.from_dict({"text": ["a", "b"]})
    datasets.DatasetDict(train=rows, held_out=rows).save_to_disk(str(tmp_path))
    with pytest.raises(UserError, match="has no test split, only train, held_out: name files or folders 'test'"):
        load(f"path:{tmp_path}", "test")


@pytest.mark.parametrize("broken", ["words", None])
def test_the_row_of_a_broken_picture_is_named(emoji, tmp_path, broken):
    picture(emoji, 0).save(tmp_path / "0.png")
    (tmp_path / "1.png").write_text("words")
    images = ["0.png", "0.png", broken and "1.png", "0.png"]
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps({"image": image}) for image in images))
    train = load(f"path:{tmp_path}/train.jsonl", "train").select(np.array([0, 2, 3]))
    reason = "cannot identify image file" if broken else "there is none"
    with pytest.raises(UserError, match=f"data: row 2 of column 'image' of .* cannot be read as a picture: {reason}"):
        train["image"][np.arange(3)]
    assert train["image"][np.array([0, 2])].shape == (2, 3, 32, 32)


@pytest.mark.parametrize(
    ("texts", "count"), [(["a", None, None], "2 of 3"), ([["a", None], ["b"]], "1 of 2"), ([None, ["b"]], "1 of 2")]
)
def test_a_missing_text_is_not_the_word_none(tmp_path, texts, count):
    datasets.Dataset.from_dict({"caption": texts}).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(UserError, match=f"column 'caption' of 'path:.*' has no text in {count} rows"):
        load(f"path:{tmp_path}", "train")


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        (datasets.ClassLabel(names=["n", "y"]), [-1, 1, 0]),  # as GLUE hides those of its tests
        (datasets.ClassLabel(names=["n", "y"]), [None, 1, 0]),
        (datasets.Value("string"), [None, "y", "n"]),
        (datasets.Sequence(datasets.ClassLabel(names=["n", "y"])), [[0, -1], [1], [0]]),
        (datasets.Sequence(datasets.Value("string")), [None, ["y"], ["n"]]),
    ],
)
def test_a_missing_label_is_told(tmp_path, kind, labels):
    features = datasets.Features({"label": kind})
    for split, rows in (("train", labels[1:]), ("test", labels)):
        made = datasets.Dataset.from_dict({"label": rows}, features=features)
        made.to_parquet(tmp_path / f"{split}.parquet")
    with pytest.raises(UserError, match=r"column 'label' of 'path:.*' has no label in 1 of [35] rows"):
        load(f"path:{tmp_path}", "test")
    if labels[0] == -1:
        assert len(load(f"path:{tmp_path}", "train")) == 2  # the names of the classes are known without the test


def test_refusals(emoji, tmp_path):
    name = parquet(emoji, tmp_path / "flickr")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "broken.parquet").write_text("x")
    datasets.Dataset.from_dict({"text": ["a"], "weight": [0.5]}).to_json(tmp_path / "train.jsonl")
    datasets.Dataset.from_dict({"label": [4, 4], "text": ["a", "b"]}).to_json(tmp_path / "same.jsonl")
    one = f"path:{tmp_path / 'train.jsonl'}"
    datasets.Dataset.from_dict({"words": ["a"]}).to_json(tmp_path / "odd.jsonl")
    datasets.Dataset.from_dict({"text": ["a"]}).to_json(tmp_path / "test.jsonl")
    for call, message in (
        (lambda: load(f"path:{tmp_path}/nowhere", "train"), "data-path"),
        (lambda: load(f"path:{tmp_path}/empty", "train"), "holds neither"),
        (lambda: load(f"path:{tmp_path}/notes.txt", "train"), "is none of .parquet"),
        (lambda: load(f"path:{tmp_path}/broken.parquet", "train"), "cannot be read as a data set"),
        (lambda: load(f"path:{tmp_path}/odd.jsonl", "train"), "say which is which, e.g. columns: {image: words}"),
        (
            lambda: load(name, "train", columns={"image": "picture"}),
            "no column 'picture' (wanted as 'image'); it has img",
        ),
        (lambda: load(f"path:{tmp_path / 'test.jsonl'}", "train"), "has no train split, only test"),
        (lambda: load(one, "train", columns={"label": "weight"}), "column 'weight'"),
        (
            lambda: load("hf:someone/nothing", "train"),
            "name a local copy as path:<folder>, or set data-path=<folder that holds nothing>",
        ),
        (lambda: load("hf:x/y", "train", data_path=str(tmp_path / "gone")), "there is no folder"),
        (lambda: load("hf:", "train"), "'hf:' names no data set: write hf:<id> or path:<file or folder>"),
        (lambda: load("hf:someone/", "train", data_path=str(tmp_path)), "'hf:someone/' names no data set"),
        (lambda: load("path:", "train", data_path=str(tmp_path)), "'path:' names no data set"),
        (lambda: load(f"path:{tmp_path / 'same.jsonl'}", "train"), "label column 'label' has one class only"),
    ):
        with pytest.raises(UserError) as error:
            call()
        assert message in str(error.value) and "\n" not in str(error.value)
