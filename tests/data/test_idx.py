"""idx files as MNIST and its kin come; Fashion-MNIST itself where a folder with it is named."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedapps.data import load
from fedapps.errors import UserError

PIXELS = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
LABELS = np.array([2, 0, 2], dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write(folder: Path, split: str, rows: slice, more: int = 0) -> None:
    """The files of a split; ``more`` is added to labels and pixels."""
    (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(PIXELS[rows] + np.uint8(more))))
    (folder / f"{split}-labels-idx1-ubyte").write_bytes(idx(LABELS[rows] + np.uint8(more)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "mnist"
    made.mkdir()
    write(made, "train", slice(None))
    write(made, "t10k", slice(2))
    return made


@pytest.mark.parametrize("how", ["path", "file", "data-path", "data-path/mnist", "mapped"])
def test_both_splits_by_every_name(folder: Path, how: str) -> None:
    name, data_path, columns = {
        "path": (f"path:{folder}", None, None),
        "file": (f"path:{folder}/train-images-idx3-ubyte.gz", None, None),
        "data-path": ("hf:ylecun/mnist", str(folder), None),
        "data-path/mnist": ("hf:ylecun/mnist", str(folder.parent), None),
        "mapped": (f"path:{folder}", None, {"image": "image", "label": "label"}),
    }[how]
    train, test = (load(name, split, data_path, columns) for split in ("train", "test"))  # type: ignore[arg-type]
    assert len(train) == 3 and len(test) == 2
    assert train["label"].tolist() == [2, 0, 2] and train.classes == {"label": ["0", "1", "2"]}
    for channel in range(3):  # grey in all three
        assert torch.equal(train["image"][[0, 2]][:, channel], torch.from_numpy(PIXELS[[0, 2]]))
    assert train["concept"].tolist() == [0, 1, 2]


def test_a_named_file_stands_for_its_set(tmp_path: Path) -> None:
    """EMNIST's six sets lie in one folder."""
    for number, which in enumerate(("emnist-digits", "emnist-letters", "latest", "")):
        for split in ("train", "test"):
            write(tmp_path, f"{which}-{split}".strip("-"), slice(None), 7 * number)
    for number, file in enumerate(
        ("emnist-digits-train-images-idx3-ubyte.gz", "emnist-letters-test-labels-idx1-ubyte")
    ):
        for split in ("train", "test"):
            samples = load(f"path:{tmp_path}/{file}", split)  # type: ignore[arg-type]
            assert samples["image"].min() == 7 * number and max(samples["label"]) == 7 * number + 2
    with pytest.raises(
        UserError, match=r"several sets: .* of emnist-digits-test-.*, emnist-letters-.*, latest-.*, test-im"
    ):
        load(f"path:{tmp_path}", "train")
    (tmp_path / "latest-test-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match=r"has no test labels, such as latest-test-labels-idx1-ubyte.gz"):
        load(f"path:{tmp_path}/latest-train-labels-idx1-ubyte", "test")


def test_classes_are_those_of_both_splits(folder: Path) -> None:
    write(folder, "t10k", slice(None), 2)
    train, test = (load(f"path:{folder}", split) for split in ("train", "test"))  # type: ignore[arg-type]
    assert train.classes == test.classes == {"label": ["0", "1", "2", "3", "4"]}


def test_a_site_may_have_training_files_alone(folder: Path) -> None:
    for file in folder.glob("t10k-*"):
        file.unlink()
    empty, train = (load(f"path:{folder}", split) for split in ("test", "train"))  # type: ignore[arg-type]
    assert (len(empty), len(train)) == (0, 3) and empty.classes == train.classes


def test_pictures_are_brought_to_a_size(folder: Path) -> None:
    assert load(f"path:{folder}", "train", image_size=8)["image"][[1]].shape == (1, 3, 8, 8)


@pytest.mark.parametrize(
    ("break_it", "line"),
    [
        (lambda f: (f / "t10k-labels-idx1-ubyte").unlink(), "has no test labels, such as test-labels-idx1-ubyte.gz"),
        (lambda f: (f / "t10k-labels-idx1-ubyte").write_bytes(idx(LABELS)), "has 2 pictures and 3 labels for test"),
        (lambda f: (f / "t10k-labels-idx1-ubyte").write_bytes(b"PK"), "is no idx file of 1-dimensional bytes"),
        (lambda f: (f / "t10k-labels-idx1-ubyte").write_bytes(idx(PIXELS)), "is no idx file of 1-dimensional bytes"),
        (lambda f: (f / "t10k-labels-idx1-ubyte").write_bytes(idx(LABELS)[:-1]), "is no idx file of 1-dim"),
        (lambda f: (f / "t10k-images-idx3-ubyte.gz").write_bytes(b"no gzip"), "is no idx file of 3-dimensional bytes"),
        (lambda f: write(f, "t10k", slice(0)), "t10k-images-idx3-ubyte.gz is empty: there is no picture for test"),
    ],
)
def test_broken_files_are_named(folder: Path, break_it, line: str) -> None:
    break_it(folder)
    with pytest.raises(UserError, match=line):
        load(f"path:{folder}", "test")


def test_a_column_that_idx_files_do_not_have(folder: Path) -> None:
    with pytest.raises(UserError, match="no column 'img'"):
        load(f"path:{folder}", "train", columns={"image": "img"})


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("FASHION_MNIST"), reason="FASHION_MNIST names no folder with its idx files")
def test_fashion_mnist() -> None:
    train, test = (load("hf:zalando-datasets/fashion_mnist", s, os.environ["FASHION_MNIST"]) for s in ("train", "test"))
    assert train["image"].shape == (60000, 3, 28, 28) and test["image"].shape == (10000, 3, 28, 28)
    assert np.bincount(train["label"]).tolist() == [6000] * 10 and np.bincount(test["label"]).tolist() == [1000] * 10
    assert train["image"][:, 0].float().mean() == pytest.approx(72.94, abs=0.01)  # the published mean, 0.2860 of 255
