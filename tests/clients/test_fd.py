"""FD's client half: what it is taught, what each loss moves, and what it sends."""

from pathlib import Path
from typing import Any

import pytest
import torch

from clients.base import class_means
from clients.fd import distillation_loss, targets_of, train
from clients.fd import test as evaluate_phase
from fedapps import wire
from fedapps.participant import Participant
from tests.helpers import context, participant

C = 9
UNIFORM = torch.full((C, C), 1 / C)


def made(folder: Path, targets: torch.Tensor | None = None, **options: Any) -> Participant:
    records = {} if targets is None else {"targets": {"means": targets}}
    return participant("a-0", folder, records, algo="fd", scenario="mrl-tiny", **options)


def sent(me: Participant) -> dict[str, torch.Tensor]:
    return wire.unpack(train(me.message, context()).content["outputs"])


def test_class_means_by_hand() -> None:
    rows = torch.tensor([[1.0, 2], [3.0, 6], [5.0, 5]])
    found = class_means(rows, torch.tensor([1, 1, 3]), 4)
    assert found["means"].tolist() == [[0, 0], [2, 4], [0, 0], [5, 5]] and found["counts"].tolist() == [0, 2, 0, 1]


def test_loss_is_the_cross_entropy_of_probabilities() -> None:
    logits, target = torch.randn(5, 3), torch.randn(5, 3).softmax(dim=1)
    want = -(target * logits.softmax(dim=1).log()).sum(dim=1).mean()
    assert distillation_loss(logits, target).item() == pytest.approx(want.item(), rel=1e-5)
    assert distillation_loss(logits, torch.zeros(5, 3)) == 0


def test_loss_is_bounded_and_its_target_gets_no_gradient() -> None:
    """With raw logits as targets, as released, descent has no end."""
    logits, target = torch.zeros(4, 3, requires_grad=True), torch.rand(4, 3).softmax(dim=1).requires_grad_()
    for _ in range(2000):
        loss = distillation_loss(logits, target)
        (grad,) = torch.autograd.grad(loss, logits)
        logits = (logits - 5 * grad).detach().requires_grad_()
    entropy = -(target * target.log()).sum(dim=1).mean().item()
    assert loss.item() == pytest.approx(entropy, abs=1e-4) and torch.allclose(logits.softmax(1), target, atol=1e-2)
    distillation_loss(logits, target).backward()
    assert target.grad is None


def test_what_leaves_are_mean_probabilities_of_the_labels_held(tmp_path: Path) -> None:
    me = made(tmp_path)
    found = sent(me)
    y = me.train.targets(torch.arange(len(me.train)))
    assert torch.equal(found["counts"], torch.bincount(y, minlength=C).float())
    held = found["counts"] > 0
    assert held.sum() == 2 and torch.allclose(found["means"].sum(dim=1), held.float())
    assert set(found) == {"means", "counts"} and not found["means"][~held].any()


def test_means_are_of_the_last_epoch(tmp_path: Path) -> None:
    first, later = (sent(made(tmp_path / str(epochs), **{"local-epochs": epochs})) for epochs in (1, 6))
    assert torch.equal(first["counts"], later["counts"])  # each sample once, not once an epoch
    after, before = (sum(found["means"].diagonal() * found["counts"]) for found in (later, first))
    assert after > before + 5  # of 40 samples; it has learned since


def test_without_targets_the_loss_is_the_tasks(tmp_path: Path) -> None:
    assert not targets_of(made(tmp_path)).any()
    alone, zeros = sent(made(tmp_path / "a")), sent(made(tmp_path / "b", torch.zeros(C, C)))
    assert torch.equal(alone["means"], zeros["means"])
    off = sent(made(tmp_path / "c", UNIFORM, **{"fd.weight": 0.0}))
    assert torch.equal(alone["means"], off["means"])


def test_distillation_moves_the_model_towards_its_targets(tmp_path: Path) -> None:
    """Towards uniform outputs, the more the larger its weight; and the whole model, not the head alone."""
    options = {"local-epochs": 6}
    entropies = []
    for weight in (0.0, 1.0, 10.0):
        me = made(tmp_path / str(weight), UNIFORM, **options, **{"fd.weight": weight})
        found = sent(me)
        rows = found["means"][found["counts"] > 0]
        entropies.append(-(rows * rows.clamp(min=1e-9).log()).sum(dim=1).mean().item())
    assert entropies == sorted(entropies)
    me = made(tmp_path)
    rows = torch.arange(8)
    logits = me.model.head(me.model.represent("image", me.train.input(me.model, "image", rows)))  # type: ignore[misc]
    distillation_loss(logits, UNIFORM[me.train.targets(rows)]).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in me.model.parameters() if p.ndim > 1)


def test_a_label_without_target_has_no_term(tmp_path: Path) -> None:
    me = made(tmp_path)
    (one, other) = me.train.target.unique().tolist()
    targets = torch.zeros(C, C)
    targets[one] = 1 / C
    logits = torch.zeros(2, C, requires_grad=True)
    distillation_loss(logits, targets[torch.tensor([one, other])]).backward()
    assert logits.grad is not None and not logits.grad[1].any()


def test_the_own_model_persists(tmp_path: Path) -> None:
    sent(made(tmp_path, UNIFORM))
    kept = made(tmp_path).store.load() or {}
    assert set(kept) == {"model", "task", "optimizer"}
    reply = evaluate_phase(made(tmp_path, server_round=2).message, context()).content
    assert not reply.array_records and 0 <= reply["evaluate"]["accuracy"] <= 100
