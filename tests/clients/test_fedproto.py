"""FedProto's client half: what draws representations where, inference by hand, and what is sent."""

from pathlib import Path
from typing import Any

import pytest
import torch

from clients.fedproto import FedProto, train
from clients.fedproto import test as evaluate_phase
from fedapps import wire
from fedapps.learner import plain, representations
from tests.helpers import context, participant

C, D = 9, 24
ROWS = torch.arange(8)


def made(
    folder: Path, means: torch.Tensor | None = None, known: torch.Tensor | None = None, **options: Any
) -> FedProto:
    prototypes = {
        "means": torch.zeros(C, D) if means is None else means,
        "known": torch.zeros(C) if known is None else known,
    }
    name = options.pop("name", "a-0")
    return FedProto(
        participant(name, folder, {"prototypes": prototypes}, algo="fedproto", scenario="mrl-tiny", **options)
    )


def test_loss_by_hand(tmp_path: Path) -> None:
    means = torch.randn(C, D)
    proto = made(tmp_path, means, torch.ones(C))
    me = proto.me
    z, y = plain(me.model)(me.train, "image", ROWS), me.train.targets(ROWS)
    _, pull = proto.losses(ROWS)
    want = sum(((z[i] - means[y[i]]) ** 2).sum() / D for i in range(8)) / 8
    assert pull.item() == pytest.approx(want.item(), rel=1e-5)  # type: ignore[union-attr]


def test_only_classes_with_a_prototype_have_a_term(tmp_path: Path) -> None:
    assert made(tmp_path).losses(ROWS)[1] == 0
    me = made(tmp_path).me
    rows = torch.arange(len(me.train))
    one, other = me.train.target.unique().tolist()
    known = torch.zeros(C)
    known[one] = 1
    both, first, neither = (
        made(tmp_path, torch.ones(C, D), mask).losses(rows)[1].item()
        for mask in (torch.ones(C), known, torch.ones(C) - torch.eye(C)[one] - torch.eye(C)[other])
    )
    assert 0 == neither < first < both


def test_what_each_loss_moves(tmp_path: Path) -> None:
    """The distance moves the encoder only, the task's loss encoder and head."""
    for part, moves_head in ((1, False), (0, True)):
        proto = made(tmp_path, torch.ones(C, D), torch.ones(C))
        proto.losses(ROWS)[part].backward()
        model = proto.me.model
        assert model.head is not None
        grads = [p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.head.parameters()]
        assert all(grads) if moves_head else not any(grads)
        assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.encoders.parameters())
        assert not proto.means.requires_grad


def test_training_draws_representations_to_the_prototypes(tmp_path: Path) -> None:
    distances = []
    for weight in (0.0, 1.0, 10.0):
        options = {"fedproto.weight": weight, "local-epochs": 5, "learning-rate": 0.005}
        proto = made(tmp_path / str(weight), torch.ones(C, D), torch.ones(C), **options)
        found = wire.unpack(train(proto.me.message, context()).content["prototypes"])
        distances.append((found["means"][found["counts"] > 0] - 1).norm().item())
    assert distances == sorted(distances, reverse=True)


def test_what_leaves_are_the_prototypes_of_the_model_that_is_kept(tmp_path: Path) -> None:
    proto = made(tmp_path)
    reply = train(proto.me.message, context()).content
    found = wire.unpack(reply["prototypes"])
    assert set(reply.array_records) == {"prototypes"} and set(found) == {"means", "counts"}
    later = made(tmp_path, server_round=2).me
    later.restore()
    z, y = representations(later.model, later.train, "image", plain(later.model)), later.train.target
    for label in range(C):
        mine = z[y == label]
        want = mine.mean(dim=0) if len(mine) else torch.zeros(D)
        assert torch.allclose(found["means"][label], want, atol=1e-5) and found["counts"][label] == len(mine)


@pytest.mark.parametrize("absent", [[0], [0, 1], [8], list(range(9))])
def test_absent_classes_never_give_nan(tmp_path: Path, absent: list[int]) -> None:
    """Class 0 included, which code that starts from the labels seen gets wrong most easily."""
    known = torch.ones(C)
    known[absent] = 0
    proto = made(tmp_path, torch.randn(C, D) * known.unsqueeze(1), known)
    content = train(proto.me.message, context()).content
    assert wire.non_finite(wire.unpack(content["prototypes"])) is None
    tested = dict(evaluate_phase(made(tmp_path, known=known, server_round=2).me.message, context()).content["evaluate"])
    assert ("prototype_accuracy" in tested) == (len(absent) < C)
    assert all(torch.isfinite(torch.tensor(value)) for value in tested.values())


def test_nearest_prototype_by_hand(tmp_path: Path) -> None:
    means, known = torch.zeros(C, D), torch.zeros(C)
    means[2, 0], means[5, 0], known[[2, 5]] = 1.0, 4.0, 1.0
    z = torch.zeros(3, D)
    z[:, 0] = torch.tensor([0.0, 2.4, 2.6])  # the zero rows of unknown classes are nearer, and do not count
    scores = made(tmp_path, means, known).nearest(z)
    assert scores.argmax(dim=1).tolist() == [2, 2, 5]
    assert scores[1, [2, 5]].tolist() == pytest.approx([-1.4, -1.6], rel=1e-5) and scores[0, 0] == -torch.inf


def test_head_is_the_headline_and_the_nearest_prototype_a_control(tmp_path: Path) -> None:
    """Prototypes far from all but one class predict that class for every test sample."""
    means = torch.full((C, D), 1e4)
    means[3] = 0
    proto = made(tmp_path, means, torch.ones(C))
    metrics = proto.evaluate()
    share = 100 * (proto.me.test.target == 3).double().mean().item()
    assert metrics["prototype_accuracy"] == pytest.approx(share, abs=1e-4)
    assert metrics["accuracy"] == made(tmp_path).evaluate()["accuracy"]


def test_the_own_model_persists(tmp_path: Path) -> None:
    train(made(tmp_path).me.message, context())
    assert set(made(tmp_path).me.store.load() or {}) == {"model", "task", "optimizer"}
