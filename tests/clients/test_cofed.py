"""CoFED's client half: when a pseudo-label is given, and what one teaches."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clients import local
from clients.base import public_probabilities
from clients.cofed import class_weights, loss_of, owned, pseudo_labels, train
from fedapps import wire
from fedapps.participant import Participant
from tests.alike import P, alike
from tests.helpers import context, participant

NONE = torch.full((P,), -1)


def made(name: str, folder: Path, labels: Tensor | None = None, **options: Any) -> Participant:
    folder.mkdir(exist_ok=True)
    records = {} if labels is None else {"targets": {"labels": labels}}
    return participant(name, folder, records, algo="cofed", scenario=alike(folder)["scenario"], **options)


def trained(me: Participant) -> dict[str, Tensor]:
    """The model after a phase."""
    train(me.message, context())
    return (me.store.load() or {})["model"]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[key], other[key]) for key in other)


def test_a_class_needs_a_margin_over_the_second() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.125, 0.625], [0.375, 0.5, 0.125]])
    assert pseudo_labels(p, "classification", 0.25).tolist() == [-1, 2, -1]  # .25 is not above .25
    assert pseudo_labels(p, "classification", 0.0).tolist() == [0, 2, 1]


def test_a_label_needs_one_between_present_and_absent() -> None:
    p = torch.tensor([[0.625, 0.75, 0.375], [0.0, 0.25, 0.5]])
    found = pseudo_labels(p, "multilabel", 0.25)
    assert found.tolist() == [[-1, 1, -1], [0, 0, -1]] and found.dtype == torch.int64


def test_loss_by_hand() -> None:
    logits, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0])
    want = F.cross_entropy(logits, y)
    assert loss_of(logits, y, torch.tensor([0.2, 1.0])) == pytest.approx(want.item())  # one class alone
    y = torch.tensor([0, 1])
    each = F.cross_entropy(logits, y, reduction="none")
    want = (0.25 * each[0] + each[1]) / 1.25
    assert loss_of(logits, y, torch.tensor([0.25, 1.0])) == pytest.approx(want.item())
    several = torch.tensor([[1, -1], [-1, 0]])
    want = (F.softplus(torch.tensor(-1.0)) + F.softplus(torch.tensor(2.0))) / 2  # the two that are known
    assert loss_of(logits, several, None) == pytest.approx(want.item())
    wholly = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    want = F.binary_cross_entropy_with_logits(logits, wholly)
    assert loss_of(logits, wholly, None) == pytest.approx(want.item())


def test_classes_weigh_by_the_samples_of_both_kinds(tmp_path: Path) -> None:
    me = made("group-0", tmp_path)
    labels = NONE.clone()
    labels[:5] = 3
    counts = torch.bincount(me.train.target, minlength=9)
    counts[3] += 5
    weights = class_weights(me, labels)
    assert weights is not None and torch.allclose(weights, 1 / counts.clamp(min=1))
    assert class_weights(made("tags-0", tmp_path), NONE.unsqueeze(1).expand(P, 4)) is None


def test_votes_and_owned_classes_are_all_that_leaves(tmp_path: Path) -> None:
    for name, shape in (("group-0", (P,)), ("tags-0", (P, 4)), ("words-0", (P,))):
        me = made(name, tmp_path)
        content = train(me.message, context()).content
        assert set(content.array_records) == {"votes", "owned"}
        votes, classes = (wire.unpack(content[record]) for record in ("votes", "owned"))
        assert votes["labels"].shape == shape and votes["labels"].dtype == torch.int64
        assert torch.equal(classes["classes"], owned(me))
        me.model.load_state_dict((me.store.load() or {})["model"])
        assert torch.equal(votes["labels"], pseudo_labels(public_probabilities(me), me.spec.task.name, 0.3))
        y = me.train.target
        held = {c for row in y for c in (torch.nonzero(row).flatten().tolist() if y.ndim > 1 else [int(row)])}
        assert set(torch.nonzero(owned(me)).flatten().tolist()) == held


def test_without_pseudo_labels_training_is_that_of_local(tmp_path: Path) -> None:
    me = made("group-0", tmp_path / "local")
    local.train(me.message, context())
    want = (me.store.load() or {})["model"]
    one = NONE.clone()
    one[7] = 3  # a batch of one
    for number, labels in enumerate((None, NONE, one)):
        assert same(trained(made("group-0", tmp_path / str(number), labels)), want)
    two = one.clone()
    two[8] = 3
    assert not same(trained(made("group-0", tmp_path / "two", two)), want)


@pytest.mark.parametrize("name", ["group-0", "words-0", "tags-0"])
def test_the_model_learns_what_came(name: str, tmp_path: Path) -> None:
    options = {"local-epochs": 15, "learning-rate": 0.01}
    me = made(name, tmp_path)
    if name == "tags-0":
        labels = torch.full((P, 4), -1)
        labels[:20, 1], labels[20:, 1] = 1, 0
    else:
        labels = NONE.clone()
        labels[: P // 2] = int(me.train.target[0])
    found = []
    for number, came in enumerate((None, labels)):
        me = made(name, tmp_path / str(number), came, **options)
        me.model.load_state_dict(trained(me))
        p = public_probabilities(me)
        kept = p[:20, 1].sum() - p[20:, 1].sum() if name == "tags-0" else p[: P // 2, me.train.target[0]].sum()
        found.append(kept.item())
    assert found[1] > found[0] + 2


def test_labels_of_a_sample_that_are_not_known_teach_nothing() -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    loss_of(logits, torch.tensor([[1, -1, 0], [-1, -1, -1]]), None).backward()
    assert logits.grad is not None
    assert logits.grad.ne(0).tolist() == [[True, False, True], [False, False, False]]
