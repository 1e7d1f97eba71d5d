"""SAGE's client half: λ, targets, and what a target teaches, by hand."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clients import local, sage
from clients.base import public_probabilities
from clients.sage import logits, outcomes, targets, train, unlabelled_loss
from fedapps import wire
from fedapps.methods import SAGEParams
from fedapps.participant import Participant
from tests.alike import P, alike
from tests.helpers import context, participant

PARAMS = SAGEParams()


def made(name: str, folder: Path, teacher: Tensor | None = None, **options: Any) -> Participant:
    folder.mkdir(exist_ok=True)
    records = {} if teacher is None else {"teacher": {"p": teacher}}
    return participant(name, folder, records, algo="sage", scenario=alike(folder)["scenario"], **options)


def trained(me: Participant) -> dict[str, Tensor]:
    train(me.message, context())
    return (me.store.load() or {})["model"]


def test_share_and_targets_by_hand() -> None:
    own = torch.tensor([[0.97, 0.03], [0.96, 0.04], [1.0, 0.0], [0.9, 0.1], [0.9, 0.1], [0.0, 1.0], [0.95, 0.05]])
    teacher = torch.tensor([[0.03, 0.97], [0.09, 0.91], [0.1, 0.9], [0.02, 0.98], [0.4, 0.6], [0.5, 0.5], [0.0, 1.0]])
    found, counts = targets(own, teacher, PARAMS)
    want = [
        [1.0, 0.0],  # both sure, as sure as each other: λ = 1, the own label
        [0.5, 0.5],  # δ = 0.05: λ = 1/2
        [0.25, 0.75],  # δ = 0.1: λ = 1/4
        [0.0, 1.0],  # the own model is not sure, the teacher is: its label
        [0.0, 1.0],  # neither is sure: it does not count
        [1 - 2.0**-10, 2.0**-10],  # the teacher has no preference: its first class, all but λ = 2^-10
        [0.5, 0.5],  # the teacher is surer by 0.05
    ]
    assert torch.allclose(found, torch.tensor(want), atol=1e-5)
    assert counts.tolist() == [True, True, True, True, False, True, True]
    assert PARAMS.confidence == 0.95 and PARAMS.kappa == pytest.approx(math.log(2) / 0.05)


def test_kappa_and_confidence_are_settings() -> None:
    own, teacher = torch.tensor([[0.8, 0.2]]), torch.tensor([[0.3, 0.7]])
    target, counts = targets(own, teacher, SAGEParams(confidence=0.75, kappa=10 * math.log(2)))
    assert torch.allclose(target, torch.tensor([[0.5, 0.5]])) and counts.tolist() == [True]
    assert targets(own, teacher, SAGEParams(confidence=0.75, kappa=0.0))[0].tolist() == [[1.0, 0.0]]
    just = torch.tensor([[0.75, 0.25]])
    assert targets(just, torch.tensor([[0.5, 0.5]]), SAGEParams(confidence=0.75))[1].tolist() == [True], "reached"


def test_each_of_several_labels_has_two_outcomes() -> None:
    own, teacher = torch.tensor([[0.97, 0.02, 0.5]]), torch.tensor([[0.03, 0.97, 0.9]])
    found, counts = targets(outcomes(own, "multilabel"), outcomes(teacher, "multilabel"), PARAMS)
    share = 2.0 ** -(0.01 / 0.05)  # own .98 absent, teacher .97 present
    want = torch.tensor([[[0.0, 1.0], [share, 1 - share], [0.0, 1.0]]])
    assert torch.allclose(found, want, atol=1e-5) and counts.tolist() == [[True, True, False]]


def test_loss_is_the_divergence_where_it_counts() -> None:
    target, z = torch.tensor([[0.25, 0.75], [1.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, -1.0]], requires_grad=True)
    want = (0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)) / 2  # a mean over both samples
    loss = unlabelled_loss(z, target, torch.tensor([True, False]))
    assert loss.item() == pytest.approx(want, rel=1e-6)
    loss.backward()
    assert z.grad is not None and torch.allclose(z.grad, torch.tensor([[0.125, -0.125], [0.0, 0.0]]))
    both = torch.stack([1 - target, target], dim=-1)
    want = unlabelled_loss(torch.stack([-z, z], dim=-1).reshape(4, 2) / 2, both.reshape(4, 2), torch.ones(4)).item()
    assert unlabelled_loss(z, both, torch.ones(2, 2)).item() == pytest.approx(want, rel=1e-6)


def test_teachers_are_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def keep(z: Tensor, target: Tensor, counts: Tensor) -> Tensor:
        found.append((z, target, counts))
        return unlabelled_loss(z, target, counts)

    monkeypatch.setattr(sage, "unlabelled_loss", keep)
    train(made("group-0", tmp_path, torch.rand(P, 9).softmax(1)).message, context())
    assert found and all(z.requires_grad and not target.requires_grad for z, target, _ in found)


def test_each_public_sample_meets_its_own_teacher_first_weak_and_then_strong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """p_l of a weak view in eval mode, p_g of the same rows, then a strong view in train mode."""
    teacher, seen = torch.rand(P, 9).softmax(1), []
    me = made("group-0", tmp_path, teacher)

    def watched(me: Participant, rows: Tensor, views: int) -> Tensor:
        seen.append((rows, views, me.model.training))
        return logits(me, rows, views)

    def watched_targets(own: Tensor, theirs: Tensor, params: SAGEParams) -> tuple[Tensor, Tensor]:
        assert torch.equal(theirs, teacher[seen[-1][0]])
        return targets(own, theirs, params)

    monkeypatch.setattr(sage, "logits", watched)
    monkeypatch.setattr(sage, "targets", watched_targets)
    train(me.message, context())
    assert [found[1:] for found in seen] == [(1, False), (2, True)] * (len(seen) // 2) and len(seen) >= 4
    weak, strong = [rows for rows, *_ in seen[::2]], [rows for rows, *_ in seen[1::2]]
    assert all(torch.equal(one, two) for one, two in zip(weak, strong, strict=True))
    assert any(not torch.equal(rows, torch.arange(len(rows))) for rows in weak)


def test_weak_and_strong_views_differ(tmp_path: Path) -> None:
    for name in ("group-0", "words-0"):
        me, rows = made(name, tmp_path), torch.arange(P)
        me.model.eval()
        with torch.no_grad():
            plain = public_probabilities(me)
            far = [(logits(me, rows, views).softmax(1) - plain).abs().mean().item() for views in (0, 1, 2)]
        assert far[0] == pytest.approx(0, abs=1e-6) and 0 < far[1] < far[2]


def test_without_a_teacher_training_is_that_of_local(tmp_path: Path) -> None:
    me = made("group-0", tmp_path / "local")
    local.train(me.message, context())
    want, got = (me.store.load() or {})["model"], trained(made("group-0", tmp_path / "a"))
    assert all(torch.equal(got[key], want[key]) for key in want)


@pytest.mark.parametrize("name", ["group-0", "words-0", "tags-0"])
def test_a_sure_teacher_is_followed_and_an_unsure_one_is_not(name: str, tmp_path: Path) -> None:
    classes = 4 if name == "tags-0" else 9
    sure = torch.zeros(P, classes)
    sure[: P // 2, 1], sure[P // 2 :, 2] = 1.0, 1.0
    agree = []
    for number, teacher in enumerate((sure, sure * 0.2 + 0.4)):
        options = {"local-epochs": 15, "learning-rate": 0.01, "sage.confidence": 0.999}
        me = made(name, tmp_path / str(number), teacher, **options)
        me.model.load_state_dict(trained(me))
        agree.append((public_probabilities(me) * sure).sum(dim=1).mean().item())
    assert agree[0] > agree[1] + 0.15


@pytest.mark.parametrize("name", ["group-0", "words-0", "tags-0"])
def test_what_leaves_are_probabilities_of_plain_public_samples(name: str, tmp_path: Path) -> None:
    me = made(name, tmp_path)
    content = train(me.message, context()).content
    assert set(content.array_records) == {"public"}
    me.model.load_state_dict((me.store.load() or {})["model"])
    p = wire.unpack(content["public"])["p"]
    assert torch.equal(p, public_probabilities(me)) and ((p >= 0) & (p <= 1)).all()
    assert name == "tags-0" or torch.allclose(p.sum(dim=1), torch.ones(P))
