"""FedHeNN's client half: the weight of a round, what the kernel's term moves, and what is sent."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clients import fedhenn
from clients.fedhenn import gram, train
from fedapps import wire
from fedapps.losses.cka import cka
from fedapps.participant import Participant
from tests.alike import alike
from tests.helpers import context, participant

L = 24
ROWS, NEXT = torch.arange(L), torch.arange(L).flip(0) + 8


def made(name: str, folder: Path, target: Tensor | None = None, **options: Any) -> Participant:
    folder.mkdir(exist_ok=True)
    records = {"next": {"rows": NEXT}}
    if target is not None:
        records |= {"rows": {"rows": ROWS}, "target": {"K": target}}
    return participant(name, folder, records, algo="fedhenn", scenario=alike(folder)["scenario"], **options)


def kernel(seed: int = 0) -> Tensor:
    x = torch.randn(L, 8, generator=torch.Generator().manual_seed(seed))
    x = x - x.mean(dim=0)
    return x @ x.T


def state(me: Participant) -> dict[str, Tensor]:
    return (me.store.load() or {})["model"]


def test_the_weight_grows_with_the_root_of_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[float]] = {"task": [], "similarity": [], "total": []}

    def watch(name: str) -> Any:
        real = getattr(fedhenn, name)

        def watched(*args: Any) -> Tensor:
            loss = real(*args)
            seen["task" if name == "task_loss" else "similarity"].append(loss.item())
            return loss

        return watched

    for name in ("task_loss", "cka"):
        monkeypatch.setattr(fedhenn, name, watch(name))
    monkeypatch.setattr(fedhenn, "step", lambda loss, *_: seen["total"].append(loss.item()))
    for server_round, eta in ((1, 0.25), (4, 0.5), (9, 0.75)):
        me = made("group-0", tmp_path, kernel(), server_round=server_round, **{"fedhenn.eta": 0.25})
        train(me.message, context())
        want = [t + eta * (1 - s) for t, s in zip(seen["task"], seen["similarity"], strict=True)]
        assert len(want) == 2 and max(seen["similarity"]) < 0.9  # two batches, far from K̄
        assert seen["total"] == pytest.approx(want, rel=1e-6)
        for values in seen.values():
            values.clear()


@pytest.mark.parametrize("name", ["group-0", "tags-0", "layers-0", "gloss-0"])
def test_the_kernels_term_moves_the_encoder_and_not_the_head(name: str, tmp_path: Path) -> None:
    me = made(name, tmp_path)
    (1 - cka(kernel(), gram(me, ROWS))).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in me.model.encoders.parameters() if p.ndim > 1)
    assert me.model.head is not None and all(p.grad is None for p in me.model.head.parameters())


def test_descent_brings_the_kernels_together(tmp_path: Path) -> None:
    after = []
    for eta in (0.0, 5.0):
        options = {"fedhenn.eta": eta, "local-epochs": 10, "learning-rate": 0.01}
        me = made("group-0", tmp_path / str(eta), kernel(), **options)
        train(me.message, context())
        me.model.load_state_dict(state(me))
        after.append(cka(kernel(), gram(me, ROWS)).item())
    assert after[1] > after[0] + 0.1


def test_without_weight_or_target_training_is_the_tasks(tmp_path: Path) -> None:
    first, second = made("group-0", tmp_path / "a"), made("group-0", tmp_path / "b", kernel(), **{"fedhenn.eta": 0.0})
    contents = [train(me.message, context()).content for me in (first, second)]
    assert all(torch.equal(state(first)[key], state(second)[key]) for key in state(first))
    assert "cka_distance" not in contents[0]["metrics"] and "cka_distance" in contents[1]["metrics"]


@pytest.mark.parametrize("name", ["group-0", "tags-0", "layers-0", "gloss-0"])
def test_what_leaves_is_the_centred_gram_of_the_next_rows(name: str, tmp_path: Path) -> None:
    me = made(name, tmp_path, kernel())
    content = train(me.message, context()).content
    assert set(content.array_records) == {"gram"}
    K = wire.unpack(content["gram"])["K"]
    assert K.shape == (L, L) and torch.allclose(K, K.T) and torch.allclose(K.sum(dim=0), torch.zeros(L), atol=1e-4)
    me.model.load_state_dict(state(me))
    with torch.no_grad():
        assert torch.equal(K, gram(me, NEXT)) and not torch.allclose(K, gram(me, ROWS))


def test_public_samples_leave_batchnorm_alone(tmp_path: Path) -> None:
    me = made("group-0", tmp_path)
    me.model.train()
    before = {name: buffer.clone() for name, buffer in me.model.named_buffers()}
    gram(me, ROWS)
    assert before and all(torch.equal(buffer, before[name]) for name, buffer in me.model.named_buffers())


def test_a_representation_without_direction_has_a_finite_gradient() -> None:
    x = torch.ones(L, 4, requires_grad=True)
    loss = 1 - cka(kernel(), fedhenn.centred_gram(x))
    loss.backward()
    assert loss == 1 and x.grad is not None and x.grad.isfinite().all()
