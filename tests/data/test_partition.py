"""Partitions: disjoint, whole, the same for the same seed; refused by name where they would be too small."""

import time

import numpy as np
import pytest

from fedapps.data import Samples, load
from fedapps.data.partition import partition
from fedapps.errors import UserError

KINDS = (
    {"kind": "iid"},
    {"kind": "dirichlet", "by": "group", "alpha": 0.5},
    {"kind": "natural", "by": "vendor"},
    {"kind": "pathological", "by": "group", "classes": 3},
    {"kind": "shards", "by": "subgroup"},
    {"kind": "shards", "shards": 13},
)


@pytest.fixture(scope="module")
def train() -> Samples:
    return load("emoji", "train")


@pytest.mark.parametrize("setting", KINDS, ids=lambda setting: "-".join(map(str, setting.values())))
def test_disjoint_within_the_rows_and_seeded(train, setting, capfd):
    rows = np.random.default_rng(0).permutation(len(train))[:5999]
    parts = partition(train, rows, 6, 3, **setting)
    whole = np.concatenate(parts)
    assert len(parts) == 6 and all(part.dtype == np.int64 and len(part) >= 2 for part in parts)
    assert len(set(whole)) == len(whole) and set(whole) <= set(rows)
    if setting["kind"] == "shards" and "by" in setting:
        assert len(whole) > len(rows) - 12  # twelve shards of one size
    elif setting["kind"] == "pathological":
        used = np.isin(train["group"][rows], train["group"][whole])  # a class that nobody draws is left out
        assert set(whole) == set(rows[used])
    else:
        assert set(whole) == set(rows)
    again, other = partition(train, rows, 6, 3, **setting), partition(train, rows, 6, 4, **setting)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(parts, other, strict=True))
    assert capfd.readouterr() == ("", "")


def test_fast(train):
    start = time.process_time()
    for setting in KINDS:
        partition(train, np.arange(len(train)), 6, 0, **setting)
    assert time.process_time() - start < 0.5 * len(KINDS)


def test_kinds_do_what_they_say(train):
    rows = np.arange(len(train))
    (whole,) = partition(train, rows, 1, 0, "whole")
    assert set(whole) == set(rows)
    vendors = partition(train, rows, 2, 0, "natural", "vendor", ids=["noto-v1", "twemoji", "noto"])
    assert [set(train["vendor"][part]) for part in vendors] == [{5}, {1}]
    sizes = [len(part) for part in partition(train, rows, 4, 0, "natural", "author")]
    assert sizes == sorted(sizes, reverse=True)
    for part in partition(train, rows, 9, 0, "pathological", "group", classes=2):
        assert len(set(train["group"][part])) == 2

    def skew(alpha: float) -> float:
        parts = partition(train, rows, 5, 0, "dirichlet", "group", alpha=alpha)
        return float(np.mean([np.bincount(train["group"][part]).max() / len(part) for part in parts]))

    assert skew(0.1) > skew(1.0) > skew(1000.0)


def test_shards_without_by_are_contiguous_in_file_order(train):
    rows = np.random.default_rng(0).permutation(5000)
    parts = partition(train, rows, 4, 0, "shards", shards=13)
    place = np.empty(5000, dtype=np.int64)  # which of the 52 shards a row is in
    for number, shard in enumerate(np.array_split(np.arange(5000), 52)):
        place[shard] = number
    dealt = [set(place[part]) for part in parts]
    assert all(len(own) == 13 for own in dealt) and len(set.union(*dealt)) == 52
    assert any(max(own) - min(own) > 12 for own in dealt)  # dealt out, not one block each
    assert set(np.concatenate(parts)) == set(rows)


def test_shards_by_a_label_hold_few_classes(train):
    few, many = (partition(train, np.arange(len(train)), 20, 0, "shards", "group", shards=n) for n in (1, 8))
    classes = [np.mean([len(set(train["group"][part])) for part in parts]) for parts in (few, many)]
    assert classes[0] < 2 and classes[1] > 4


def test_size_keeps_a_random_subset(train):
    rows = np.arange(len(train))
    whole = partition(train, rows, 3, 1, "iid")
    some = partition(train, rows, 3, 1, "iid", size=100)
    assert all(len(part) == 100 and set(part) <= set(full) for part, full in zip(some, whole, strict=True))
    assert all(len(part) == 400 for part in partition(train, rows, 8, 5, "dirichlet", "group", alpha=1.0, size=400))


def test_a_text_column_may_be_natural(train):
    rows = np.arange(300)
    parts = partition(train, rows, 2, 0, "natural", "name", min_size=1)
    assert all(len({train["name"][row] for row in part}) == 1 for part in parts)


def test_refusals(train):
    def refuse(message: str, num: int, kind: str, by: str | None = None, rows: int = len(train), **params) -> None:
        with pytest.raises(UserError) as error:
            partition(train, np.arange(rows), num, 1, kind, by, **params)
        assert message in str(error.value) and "\n" not in str(error.value), str(error.value)

    settings = "(kind dirichlet, num 60, alpha 0.01, by group, rows 6502)"
    refuse(f"fewer than min-size 2 {settings}: take a larger `alpha`", 60, "dirichlet", "group", alpha=0.01)
    refuse("partition 0 has 2168 rows, fewer than size 5000 (kind iid, num 3, rows 6502)", 3, "iid", size=5000)
    refuse(
        "partition 1 has 1171 rows, fewer than size 1200", 2, "natural", "vendor", ids=["twemoji", "noto"], size=1200
    )
    refuse("min-size 900 (kind pathological, num 9, classes 2, by group", 9, "pathological", "group", min_size=900)
    refuse("`group` has only 9 classes", 3, "pathological", "group", classes=10)
    refuse("another number of `classes`", 3000, "pathological", "group", rows=4000)
    refuse("7 participants but 6 values: openmoji", 7, "natural", "vendor")
    refuse("`vendor` has no value 'notto' in these rows (did you mean 'noto'?)", 1, "natural", "vendor", ids=["notto"])
    refuse("names a value twice", 2, "natural", "vendor", ids=["noto", "noto"])
    refuse("num must be 1", 2, "whole")
    refuse("num must be at least 1", 0, "iid")
    refuse("fewer rows than participants", 9, "iid", rows=5)
    refuse("unknown kind 'iidd' (did you mean 'iid'?)", 2, "iidd")
    refuse("kind dirichlet needs `by`, a label column such as vendor, group", 2, "dirichlet")
    refuse("shards 4, rows 7: shards must be at least 1, and each shard must have a row", 2, "shards", rows=7, shards=4)
    refuse("shards 0, by group", 2, "shards", "group", shards=0)
    refuse("`by: tags:3` is no label with one value a row", 2, "dirichlet", "tags:3")
    refuse("no column 'grup'", 2, "dirichlet", "grup")


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_a_hundred_of_a_skewed_dirichlet_are_dealt_rows_or_refused(train, alpha):
    """No empty partition reaches training: draws with one are drawn again, and what stays too small is named."""
    rows, smallest = np.arange(len(train)), {0.1: 1, 0.5: 10}[alpha]
    parts = partition(train, rows, 100, 1, "dirichlet", "group", alpha=alpha, min_size=smallest)
    assert min(map(len, parts)) >= smallest and len(set(np.concatenate(parts))) == len(train)
    line = rf"fewer than min-size 30 \(kind dirichlet, num 100, alpha {alpha}, .*take a larger `alpha`, fewer"
    with pytest.raises(UserError, match=line):
        partition(train, rows, 100, 1, "dirichlet", "group", alpha=alpha, min_size=30)


@pytest.mark.parametrize(
    ("kind", "by", "num", "line"),
    [
        ("iid", None, 100, "fewer than min-size 2 (kind iid, num 100"),
        ("dirichlet", "group", 100, "fewer than min-size 2 (kind dirichlet, num 100, alpha 1.0, by group"),
        ("pathological", "group", 100, "kind pathological, num 100, classes 2, by group, rows 120: take fewer"),
        ("shards", "group", 100, "shards 2, by group, rows 120: shards must be at least 1, and each shard must"),
        ("natural", "author", 40, "fewer than min-size 2 (kind natural, num 40, by author"),
    ],
)
def test_too_few_rows_for_so_many_are_refused(train, kind, by, num, line):
    rows = np.random.default_rng(0).permutation(len(train))[:120]
    with pytest.raises(UserError) as error:
        partition(train, rows, num, 1, kind, by)
    assert line in str(error.value) and "\n" not in str(error.value)


def test_a_set_without_labels_says_so():
    bare = Samples(4, {"text": list("abcd")})
    with pytest.raises(UserError, match="needs `by`, a label column; the data have none: name one in `columns`"):
        partition(bare, np.arange(4), 2, 1, "dirichlet")
    assert sorted(np.concatenate(partition(bare, np.arange(4), 2, 1, "shards", shards=1))) == [0, 1, 2, 3]
