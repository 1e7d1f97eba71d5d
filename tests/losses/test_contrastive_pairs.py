"""Pairwise, Gramian, NT-Xent and CKA against their definitions."""

import math

import pytest
import torch
from torch.nn import functional as F

from fedapps.losses import centred_gram, cka, gramian, linear_cka, nt_xent, pairwise


def units(rows: int, dim: int = 8, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, dim, generator=generator, dtype=torch.float64))


# ----------------------------------------------------------------------------------------------- pairwise


@pytest.mark.parametrize("tau", [0.2, torch.tensor([0.1, 0.4])])
def test_pairwise_is_the_sum_of_one_way_infonce(tau):
    anchor, others = units(5).requires_grad_(), [units(5, seed=1).requires_grad_(), units(5, seed=2)]
    loss, total = pairwise(anchor, others, tau), 0.0
    for other, t in zip(others, torch.as_tensor(tau).expand(2).tolist(), strict=True):
        logits = (anchor @ other.T / t).tolist()
        total += sum(math.log(sum(map(math.exp, row))) - row[i] for i, row in enumerate(logits)) / 5
    assert loss.item() == pytest.approx(total, rel=1e-6)
    loss.backward()
    assert anchor.grad.any() and others[0].grad is None


# ------------------------------------------------------------------------------------------------ Gramian


def literal_gramian(anchor, others, tau, smoothing):
    B = len(anchor)
    volume = torch.stack(
        [
            torch.stack(
                [torch.linalg.det(w @ w.T) for w in (torch.stack([z, *(o[j] for o in others)]) for j in range(B))]
            )
            for z in anchor
        ]
    )
    logits = -(volume + 1e-8).sqrt() / tau
    total = 0
    for log_p in (logits.log_softmax(1), logits.T.log_softmax(1)):
        total = total - (1 - smoothing) * log_p.diagonal().mean() - smoothing * log_p.mean()
    return total / 2


@pytest.mark.parametrize("num", [1, 2, 3, 4])
def test_gramian_is_the_contrast_of_volumes(num):
    anchor, others = units(5).requires_grad_(), [units(5, seed=m) for m in range(1, num + 1)]
    got, wanted = gramian(anchor, others, 0.3), literal_gramian(anchor, others, 0.3, 0.1)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)
    gradients = (torch.autograd.grad(loss, anchor)[0] for loss in (got, wanted))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-10)


def test_gramian_by_hand():
    """One other, so the volume is the sine of the angle: 0 for the match, 1 for the other row."""
    x = torch.eye(2, 3, dtype=torch.float64)
    loss = gramian(x, [x], 0.5, label_smoothing=0, eps=0)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-2)))


@pytest.mark.parametrize("num", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gramian_survives_perfect_alignment(num, dtype):
    z = units(32, 128).to(dtype)  # in float32 some volumes are below 0 by rounding
    anchor, others = z.clone().requires_grad_(), [z.clone().requires_grad_() for _ in range(num)]
    loss = gramian(anchor, others)
    loss.backward()
    assert loss.isfinite() and anchor.grad.isfinite().all() and anchor.grad.norm() < 100
    assert all(other.grad is None for other in others)


def test_gramian_gradcheck():
    others = [units(3, seed=1), units(3, seed=2)]
    assert torch.autograd.gradcheck(lambda z: gramian(z, others), units(3).requires_grad_())


# ------------------------------------------------------------------------------------------------ NT-Xent


def test_nt_xent_by_hand():
    """Two samples at right angles, both views equal: each row sees its match (1) and two others (0)."""
    x = torch.eye(2)
    assert nt_xent(x, x, 0.5).item() == pytest.approx(math.log(math.exp(2) + 2) - 2)


def test_nt_xent_is_over_all_pairs_but_itself():
    x, y = units(4), units(4, seed=1)
    z, total = torch.cat([x, y]), 0.0
    for i in range(8):
        s = (z[i] @ z.T / 0.2).tolist()
        total += math.log(sum(math.exp(v) for k, v in enumerate(s) if k != i)) - s[(i + 4) % 8]
    assert nt_xent(x, y, 0.2).item() == pytest.approx(total / 8)
    torch.testing.assert_close(nt_xent(y, x, 0.2), nt_xent(x, y, 0.2))
    assert torch.autograd.gradcheck(lambda a, b: nt_xent(a, b, 0.2), (x.requires_grad_(), y.requires_grad_()))


# ---------------------------------------------------------------------------------------------------- CKA


def test_cka_by_hand():
    """Centred columns a, b at right angles, |a|² = 2 and |b|² = 6: ⟨aaᵀ, aaᵀ + bbᵀ⟩ = 4, norms 2 and √(4 + 36)."""
    a, b = torch.tensor([[-1.0], [0.0], [1.0]]), torch.tensor([[1.0], [-2.0], [1.0]])
    assert linear_cka(a, b).item() == pytest.approx(0, abs=1e-7)
    assert linear_cka(a, 3 - 2 * a).item() == pytest.approx(1)
    assert linear_cka(a, torch.cat([a, b], 1)).item() == pytest.approx(4 / (2 * math.sqrt(4 + 36)))


def test_cka_is_the_normalised_hsic():
    x, y = units(7), units(7, 3, seed=1)
    H = torch.eye(7, dtype=torch.float64) - 1 / 7
    hsic = lambda a, b: torch.trace(a @ a.T @ H @ b @ b.T @ H)  # noqa: E731
    torch.testing.assert_close(linear_cka(x, y), hsic(x, y) / (hsic(x, x) * hsic(y, y)).sqrt())
    torch.testing.assert_close(centred_gram(x), H @ x @ x.T @ H)


def test_cka_does_not_see_rotation_scale_and_shift():
    x, y = units(9), units(9, 5, seed=1)
    rotation = torch.linalg.qr(units(8, 8, seed=2)).Q
    torch.testing.assert_close(linear_cka(3 * x @ rotation + 5, y), linear_cka(x, y))
    torch.testing.assert_close(linear_cka(x, x @ rotation).item(), 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cka_of_a_constant_representation_is_finite(dtype):
    x, y = units(1).expand(6, -1).to(dtype).clone().requires_grad_(), units(6, 5, seed=1).to(dtype)
    similarity = cka(centred_gram(x), centred_gram(y))
    similarity.backward()
    assert similarity.abs() < 1e-3 and x.grad.isfinite().all() and x.grad.norm() < 100
    assert linear_cka(x.detach(), x.detach()).isfinite()


def test_cka_gradcheck():
    K = centred_gram(units(4, 3, seed=1))
    assert torch.autograd.gradcheck(lambda x: cka(K, centred_gram(x)), units(4, 5).requires_grad_())
