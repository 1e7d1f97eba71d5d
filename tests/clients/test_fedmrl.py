"""FedMRL's client half: what is nested, what each loss moves, what persists and what never leaves."""

from pathlib import Path

import pytest
import torch

from clients.fedmrl import FedMRL, train
from clients.fedmrl import test as evaluate_phase
from fedapps.contract import travelling
from fedapps.learner import build_shared, plain
from fedapps.models import build_encoder, head_of
from fedapps.scenario import load_scenario
from tests.helpers import context, participant

D1, D2, C = 8, 24, 9
ROWS = torch.arange(6)


def made(name: str, folder: Path, **options: object) -> FedMRL:
    scenario = load_scenario("mrl-tiny")
    theta = build_shared(scenario, "image", D1, C, 1)
    for_all = {"algo": "fedmrl", "scenario": "mrl-tiny", **options}
    params = FedMRL(
        participant(name, folder, {"shared": theta.state_dict()}, algo="fedmrl", scenario="mrl-tiny")
    ).params
    sent = travelling(theta, params.model_copy(update={"variant": options.get("fedmrl.variant", "mrl")}))
    return FedMRL(participant(name, folder, {"shared": sent}, **for_all))


def sizes(encoder: torch.nn.Module, dim: int, classes: int) -> int:
    return sum(p.numel() for p in encoder.parameters()) + dim * classes + classes


@pytest.mark.parametrize(
    ("number", "ten", "hundred"),
    [
        (1, 2_621_558, 2_666_648),
        (2, 1_815_142, 1_860_232),
        (3, 1_320_558, 1_365_648),
        (4, 1_060_358, 1_105_448),
        (5, 670_058, 715_148),
    ],
)
def test_parameter_counts_of_the_papers_models(number: int, ten: int, hundred: int) -> None:
    encoder = build_encoder("image", f"cnn-{number}", 500)
    assert sizes(encoder, 500, 10) == ten and sizes(encoder, 500, 100) == hundred


@pytest.mark.parametrize(("d1", "count"), [(100, 465_658), (300, 567_858), (500, 670_058)])
def test_parameter_counts_of_the_small_model(d1: int, count: int) -> None:
    assert sizes(build_encoder("image", "cnn-5", d1), d1, 10) == count


def test_shared_part_comes_first_and_the_coarse_head_reads_the_prefix(tmp_path: Path) -> None:
    mrl = made("a-0", tmp_path)
    view = mrl.me.train
    shared, own = plain(mrl.small)(view, "image", ROWS), plain(mrl.me.model)(view, "image", ROWS)
    assert shared.shape == (6, D1) and own.shape == (6, D2)
    z = mrl.fused(view, "image", ROWS)
    w, b = mrl.projector.weight, mrl.projector.bias
    assert torch.allclose(z, shared @ w[:, :D1].T + own @ w[:, D1:].T + b, atol=1e-5)
    changed = z.clone()
    changed[:, D1:] += 1
    assert torch.equal(mrl.coarse(z), mrl.coarse(changed))
    assert not torch.equal(head_of(mrl.me.model)(z), head_of(mrl.me.model)(changed))


def test_the_coarse_loss_moves_the_prefix_of_the_projector_only(tmp_path: Path) -> None:
    mrl = made("a-0", tmp_path, **{"fedmrl.m-local": 0.0})
    mrl.loss(ROWS).backward()
    grad = mrl.projector.weight.grad
    assert grad is not None and grad[:D1].abs().sum() > 0 and grad[D1:].abs().sum() == 0
    assert head_of(mrl.me.model).linear.weight.grad.abs().sum() == 0  # type: ignore[union-attr]
    for module in (mrl.small.encoders, mrl.small.head, mrl.me.model.encoders):  # both extractors learn from it
        assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())


def test_the_fine_loss_moves_everything_but_the_shared_head(tmp_path: Path) -> None:
    mrl = made("a-0", tmp_path, **{"fedmrl.m-global": 0.0})
    mrl.loss(ROWS).backward()
    assert head_of(mrl.small).linear.weight.grad.abs().sum() == 0  # type: ignore[union-attr]
    for module in (mrl.small.encoders, mrl.projector, mrl.me.model):
        assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())


def test_weights_of_the_losses(tmp_path: Path) -> None:
    both, coarse, fine = (
        made("a-0", tmp_path, **{"fedmrl.m-global": g, "fedmrl.m-local": f}).loss(ROWS).item()
        for g, f in ((2.0, 3.0), (1.0, 0.0), (0.0, 1.0))
    )
    assert both == pytest.approx(2 * coarse + 3 * fine, rel=1e-5)


def test_mrl_e_uses_the_own_heads_first_columns(tmp_path: Path) -> None:
    mrl = made("a-0", tmp_path, **{"fedmrl.variant": "mrl-e"})
    z = torch.randn(5, D2)
    own = head_of(mrl.me.model).linear
    assert torch.allclose(mrl.coarse(z), z[:, :D1] @ own.weight[:, :D1].T + own.bias, atol=1e-6)
    assert not any(name.startswith("head.") for name in travelling(mrl.small, mrl.params))
    assert "single_small_accuracy" not in mrl.evaluate()


def test_projector_and_own_model_persist_and_the_shared_one_does_not(tmp_path: Path) -> None:
    first = made("a-0", tmp_path).me
    train(first.message, context())
    kept = first.store.load() or {}
    assert set(kept) == {"model", "task", "optimizer", "projector", "projector_optimizer"}
    second = made("a-0", tmp_path, server_round=2)
    assert torch.equal(second.projector.weight.cpu(), kept["projector"]["weight"])
    theta = build_shared(load_scenario("mrl-tiny"), "image", D1, C, 1).state_dict()
    assert all(torch.equal(tensor, theta[name]) for name, tensor in second.small.state_dict().items())


def test_all_variants_of_inference_are_reported(tmp_path: Path) -> None:
    content = evaluate_phase(made("c-0", tmp_path).me.message, context()).content["evaluate"]
    assert {"accuracy", "mix_small_accuracy", "single_small_accuracy", "single_large_accuracy"} <= set(content)


def test_only_the_small_model_leaves(tmp_path: Path) -> None:
    reply = train(made("b-0", tmp_path).me.message, context()).content
    assert set(reply.array_records) == {"shared"}
