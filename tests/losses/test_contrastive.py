"""PCME and InfoNCE against their definitions, pair by pair."""

import math

import pytest
import torch
from torch.nn import functional as F

from fedapps.losses import PCMELoss, infonce


def units(rows: int, dim: int = 6, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, dim, generator=generator, dtype=torch.float64))


def brute_pcme(x, y, a, b, match):
    """The sum over all pairs and both directions, one pair at a time."""
    total = 0
    for left, right, matches in ((x, y, match), (y, x, match.T)):
        for i in range(len(left)):
            for j in range(len(right)):
                s = -a * ((left[i] - right[j]).square().sum() + 1e-6).sqrt() + b
                m = 1 if matches[i, j] else -1
                total = total - (m * s - torch.logsumexp(torch.stack([s, -s]), 0))
    return total


@pytest.mark.parametrize("match", [None, torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]]) > 0])
def test_pcme_is_the_sum_over_pairs_in_value_and_gradient(match):
    loss = PCMELoss().double()
    x, y = units(4).requires_grad_(), units(4, seed=1).requires_grad_()
    with torch.no_grad():
        y[1] = x[1]  # distance zero: the gradient must stay right
    value = loss(x, y, match)
    wanted = brute_pcme(x, y, loss.scale, loss.shift, torch.eye(4) > 0 if match is None else match)
    torch.testing.assert_close(value, wanted)
    parts = (x, y, loss.scale, loss.shift)
    for got, true in zip(torch.autograd.grad(value, parts), torch.autograd.grad(wanted, parts), strict=True):
        torch.testing.assert_close(got, true)


def test_pcme_means_over_pairs_survives_far_points_and_one_row():
    x, y = units(5), units(5, seed=1)
    torch.testing.assert_close(PCMELoss(reduction="mean")(x, y) * 25, PCMELoss()(x, y))
    far = (1000 * x.float()).requires_grad_()
    PCMELoss()(far, -far.detach()).backward()
    assert far.grad.isfinite().all()
    assert PCMELoss()(x[:1], y[:1]).isfinite()
    assert {name: p.item() for name, p in PCMELoss().named_parameters()} == {"scale": 15, "shift": 15}


def test_pcme_keeps_small_distances_exact_in_fp32():
    x = F.normalize(torch.randn(64, 64))
    y = F.normalize(x + 1e-4 * torch.randn(64, 64))
    exact = PCMELoss().double()(x.double(), y.double())
    torch.testing.assert_close(PCMELoss()(x, y).double(), exact, rtol=1e-5, atol=0)


def test_infonce_by_hand():
    x, y = units(3), units(3, seed=1)
    logits, total = (x @ y.T / 0.5).tolist(), 0.0
    for i in range(3):
        total += math.log(sum(math.exp(v) for v in logits[i])) - logits[i][i]
        total += math.log(sum(math.exp(row[i]) for row in logits)) - logits[i][i]
    assert infonce(x, y, 0.5).item() == pytest.approx(total / 6)
    assert infonce(x, y, 0.5, torch.eye(3) > 0).item() == pytest.approx(total / 6)


def test_infonce_shares_the_target_among_matches():
    x, y = units(2), units(2, seed=1)
    everything = torch.ones(2, 2, dtype=torch.bool)
    logits = x @ y.T / 0.1
    wanted = -(logits.log_softmax(1).mean() + logits.log_softmax(0).mean()) / 2
    torch.testing.assert_close(infonce(x, y, 0.1, everything), wanted)
