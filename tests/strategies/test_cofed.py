"""CoFED's server half: votes by hand, and what crosses in a run."""

from pathlib import Path

import torch
from torch import Tensor

from fedapps import wire
from simulations.in_process import run
from strategies.cofed import agreed, only_one, vote
from tests.alike import GROUP, TAGS, P, alike


def flags(*rows: str) -> Tensor:
    found = torch.tensor([[int(sign) for sign in row] for row in rows]).bool()
    return found[0] if len(rows) == 1 else found


OWNED = {"a": flags("1100"), "b": flags("1110"), "c": flags("0010")}  # the last class is nobody's


def test_votes_and_overlap_by_hand() -> None:
    labels = {
        "a": torch.tensor([0, 0, 1, 2, -1, 3, 0]),
        "b": torch.tensor([0, 1, -1, -1, -1, 3, 0]),
        "c": torch.tensor([0, -1, 2, -1, -1, 3, 2]),
    }
    found = vote(labels, OWNED, 0.3)
    want = {
        # both owners say 0; one says 0, one 1: both classes are those of a and of b; class 1 from a and 2 from c;
        # a's vote for a class that it does not own; nobody is sure; a class of nobody; 0 from a and b, 2 from c
        "a": [0, -1, 1, -1, -1, -1, 0],  # it does not own class 2, so that this is no overlap for it
        "b": [0, -1, -1, -1, -1, -1, -1],
        "c": [-1, -1, 2, -1, -1, -1, 2],
    }
    assert {name: target.tolist() for name, target in found.items()} == want
    assert all(target.dtype == torch.int64 for target in found.values())
    assert vote(labels, OWNED, 0.5)["a"].tolist() == [0, -1, -1, -1, -1, -1, 0]  # a half is not more than a half
    assert vote({}, {}, 0.3) == {}


def test_the_share_must_be_above_the_threshold() -> None:
    said = [flags("1", "1")] * 3 + [flags("0", "1")] + [flags("0", "0")] * 6
    assert agreed(said, [flags("1")] * 10, 0.3).flatten().tolist() == [False, True]  # 3 and 4 of 10
    half = [flags("1")] * 5 + [flags("0")] * 5  # those that do not own the class neither vote nor count
    assert agreed(said, half, 0.3).flatten().tolist() == [True, True]


def test_a_class_that_does_not_exist_gets_no_vote() -> None:
    labels = {"a": torch.tensor([99, -7]), "b": torch.tensor([0, 0])}
    assert vote(labels, {"a": OWNED["a"], "b": OWNED["b"]}, 0.3)["b"].tolist() == [0, 0]


def test_exactly_one_class() -> None:
    assert only_one(flags("010", "011", "000", "001")).tolist() == [1, -1, -1, 2]


def test_each_of_several_labels_is_voted_on_by_itself() -> None:
    labels = {
        "a": torch.tensor([[1, 0, 1, -1], [1, -1, -1, 1]]),
        "b": torch.tensor([[1, 1, 0, 1], [0, -1, 0, 0]]),
        "c": torch.tensor([[0, 0, 1, -1], [1, 1, 1, 1]]),
    }
    found = vote(labels, OWNED, 0.3)
    want = {  # labels 0 and 1 are a's and b's, label 2 is b's and c's, label 3 nobody's
        "a": [[1, -1, -1, -1], [-1, -1, -1, -1]],
        "b": [[1, -1, -1, -1], [-1, -1, -1, -1]],
        "c": [[-1, -1, -1, -1], [-1, -1, -1, -1]],
    }
    assert {name: target.tolist() for name, target in found.items()} == want
    one = {name: {"a": 1, "b": -1, "c": -1}[name] * torch.ones(1, 4, dtype=torch.int64) for name in labels}
    assert vote(one, OWNED, 0.3)["b"].tolist() == [[1, 1, -1, -1]]  # one of two owners, and none against
    assert vote({name: label * 0 for name, label in one.items()}, OWNED, 0.3)["c"].tolist() == [[-1, -1, 0, -1]]


def test_what_comes_down_is_the_vote_on_what_went_up_last(tmp_path: Path) -> None:
    """Also of those that were not drawn in the round before; nothing but labels and the classes that are owned."""
    sent: dict[str, dict[str, Tensor]] = {}
    layouts, checked = set(), set()

    def look(message, reply):  # type: ignore[no-untyped-def]
        for key, value in message.content.array_records.items():
            name = key.partition("/")[0]
            voters = [other for other in (GROUP if name in GROUP else TAGS) if other in before]
            labels, owned = ({other: before[other][key] for other in voters} for key in ("labels", "classes"))
            want = vote(labels, {other: classes > 0 for other, classes in owned.items()}, 0.3)[name]
            assert torch.equal(wire.unpack(value)["labels"], want)
            checked.add(name)
        for key, value in reply.content.array_records.items():
            sent[key.partition("/")[0]] = {**sent.get(key.partition("/")[0], {}), **wire.unpack(value)}
            layouts.update((key.partition("-")[0], *entry) for entry in wire.read_layout(value).items())
        return reply

    before: dict[str, dict[str, Tensor]] = {}
    config = alike(tmp_path, algo="cofed", **{"fraction-train": 0.75})
    for server_round in range(1, 4):  # one round at a time, as all of a round get what came before it
        before = {name: dict(records) for name, records in sent.items()}
        run({**config, "num-server-rounds": server_round, "resume": server_round > 1}, tamper=look)
    assert checked & set(GROUP) and checked & set(TAGS)
    classes, several = ("int64", (P,)), ("int64", (P, 4))
    assert layouts == {
        *(("group", "labels", classes), ("group", "classes", ("float32", (9,)))),
        *(("words", "labels", classes), ("words", "classes", ("float32", (9,)))),
        *(("tags", "labels", several), ("tags", "classes", ("float32", (4,)))),
    }
