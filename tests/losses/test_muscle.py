"""The contracted Muscle loss against the paper's sum, tuple by tuple."""

import math
from itertools import product

import pytest
import torch
from torch.nn import functional as F

from fedapps.losses import (
    infonce,
    muscle,
    muscle_loss,
    muscle_loss_and_grad,
    muscle_loss_from_tuples,
    pairwise,
    tuple_matrix,
)
from tests.helpers import peak_memory


def units(rows: int, dim: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Random directions with a common part, as representations have."""
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(0.5 + torch.randn(rows, dim, generator=generator, dtype=dtype))


def batches(num: int, rows: int, dim: int = 6, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [units(rows, dim, seed, dtype) for seed in range(1, num + 1)]


def table(size: int, low: float, high: float) -> torch.Tensor:
    values = low + (high - low) * torch.rand(size, size, generator=torch.Generator().manual_seed(0))
    return (values + values.T) / 2


def temperatures(kind: str, num: int) -> tuple:
    if kind == "equal":
        return 0.2, 0.15
    return table(num + 1, 0.2, 0.4), table(num, 0.1, 0.19)


def literal(anchor, others, tau, tau_prev):
    """The paper's loss with its ordered double sum and ½, one tuple at a time."""
    M, B = len(others), len(anchor)
    tau = torch.as_tensor(tau, dtype=torch.float64).expand(M + 1, M + 1)
    prev = torch.as_tensor(tau_prev, dtype=torch.float64).expand(M, M)
    total = 0
    for i in range(B):
        terms = {}
        for j in product(range(B), repeat=M):
            term = sum(anchor[i] @ others[m][j[m]] / tau[0, m + 1] for m in range(M))
            for m, n in product(range(M), repeat=2):
                if m != n:
                    gamma = 1 / prev[m, n] - 1 / tau[m + 1, n + 1]
                    term = term - 0.5 * gamma * others[m][j[m]] @ others[n][j[n]]
            terms[j] = term
        total = total + torch.logsumexp(torch.stack(list(terms.values())), 0) - terms[(i,) * M]
    return total / B


def value_and_gradient(loss, anchor, *arguments):
    anchor = anchor.clone().requires_grad_()
    value = loss(anchor, *arguments)
    return value.detach(), torch.autograd.grad(value, anchor)[0]


def same(got, wanted, atol=1e-10, rtol=0.0):
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize("chunk", [1, 40, muscle.CHUNK], ids=["one-by-one", "chunked", "whole"])
@pytest.mark.parametrize("kind", ["equal", "unequal"])
@pytest.mark.parametrize(("num", "rows"), [(1, 5), (2, 5), (3, 4), (4, 3), (5, 2)])
def test_every_form_is_the_sum_over_tuples(num, rows, kind, chunk, monkeypatch):
    monkeypatch.setattr(muscle, "CHUNK", chunk)
    anchor, others, taus = units(rows), batches(num, rows), temperatures(kind, num)
    wanted = value_and_gradient(literal, anchor, others, *taus)
    same(value_and_gradient(muscle_loss, anchor, others, *taus), wanted)
    same(muscle_loss_and_grad(anchor, others, *taus), wanted)
    same(value_and_gradient(muscle_loss_from_tuples, anchor, *tuple_matrix(others, *taus)), wanted)


@pytest.mark.parametrize(("num", "rows"), [(3, 45), (4, 20)])
def test_chunks_that_do_not_divide_the_batch(num, rows):
    """Beyond what literal loops can do: the real chunk size against the paper's form."""
    anchor, others = units(rows), batches(num, rows)
    assert rows % (muscle.CHUNK // rows ** (num - 1))  # the last chunk is a shorter one
    wanted = value_and_gradient(muscle_loss_from_tuples, anchor, *tuple_matrix(others))
    same(value_and_gradient(muscle_loss, anchor, others), wanted)


@pytest.mark.parametrize("num", [2, 3, 4])
def test_without_alpha_it_is_pairwise(num):
    """γ = 0 is τ^(N-1) = τ^(N), which muscle_loss refuses: so the contraction itself, and the limit."""
    anchor, others, taus = units(4), batches(num, 4), [0.2, 0.3, 0.25, 0.4][:num]
    nothing = [[0.0] * num] * num
    wanted = value_and_gradient(pairwise, anchor, others, torch.tensor(taus, dtype=torch.float64))
    same(muscle.contraction(anchor, others, taus, nothing), wanted, 1e-13)
    near = muscle_loss(anchor, others, 0.2, 0.2 * (1 - 1e-9))
    torch.testing.assert_close(near, pairwise(anchor, others, 0.2), rtol=0, atol=1e-7)
    assert abs(muscle_loss(anchor, others) - pairwise(anchor, others)) > 1e-3


def test_one_other_is_infonce_whatever_tau_prev():
    x, y = units(7), units(7, seed=1)
    one_way = F.cross_entropy(x @ y.T / 0.1, torch.arange(7))
    for prev in (0.01, 0.15):
        torch.testing.assert_close(muscle_loss(x, [y], 0.1, prev), one_way)
    torch.testing.assert_close((muscle_loss(x, [y], 0.1) + muscle_loss(y, [x], 0.1)) / 2, infonce(x, y, 0.1))


@pytest.mark.parametrize("num", [3, 4])
def test_the_order_of_the_others_does_not_matter(num):
    anchor, others = units(4), batches(num, 4)
    tau, prev = temperatures("unequal", num)
    order = [2, 0, 1, 3][:num]
    with_anchor = [0, *(m + 1 for m in order)]
    moved = [others[m] for m in order], tau[with_anchor][:, with_anchor], prev[order][:, order]
    same(muscle_loss_and_grad(anchor, *moved), muscle_loss_and_grad(anchor, others, tau, prev), 1e-13)


@pytest.mark.parametrize("num", [1, 2, 3, 4])
def test_gradcheck(num):
    others = batches(num, 3, 4)
    assert torch.autograd.gradcheck(lambda z: 3 * muscle_loss(z, others), units(3, 4).requires_grad_())


def test_the_others_are_constants_and_only_the_gradient_is_kept():
    anchor, others = units(4).requires_grad_(), [other.requires_grad_() for other in batches(3, 4)]
    loss = muscle_loss(anchor, others)
    assert [saved.shape for saved in loss.grad_fn.saved_tensors] == [anchor.shape]
    loss.backward()
    assert anchor.grad.any() and all(other.grad is None for other in others)
    assert not muscle_loss(anchor.detach(), others).requires_grad


def test_there_is_no_second_derivative():
    anchor = units(4).requires_grad_()
    (first,) = torch.autograd.grad(muscle_loss(anchor, batches(2, 4)), anchor, create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()


@pytest.mark.parametrize("taus", [(0.2, 0.15), (0.07, 0.05), (0.03, 0.02)])
@pytest.mark.parametrize("num", [2, 3, 4])
def test_float32_is_good_enough(taus, num):
    anchor, others = units(16, 32), batches(num, 16, 32)
    loss, grad = muscle_loss_and_grad(anchor, others, *taus)
    loss32, grad32 = muscle_loss_and_grad(anchor.float(), [other.float() for other in others], *taus)
    assert loss32.dtype == grad32.dtype == torch.float32
    torch.testing.assert_close(loss32.double(), loss, rtol=1e-5, atol=1e-6)
    assert (grad32 - grad).norm() < 1e-5 * grad.norm()


@pytest.mark.parametrize("num", [2, 3])
def test_large_gamma_takes_float64(num):
    """Others that are one another's opposites: the shifted sum of one anchor is near exp(-γ M(M-1)), 0 in float32."""
    x = F.normalize(torch.tensor([[1.0, 0.0], [-1.0, 1e-3]]))
    others, taus = [x] * num, (0.02, 0.008)
    gamma = [[75.0] * num] * num
    assert not muscle.contraction(x, others, [taus[0]] * num, gamma)[0].isclose(muscle_loss(x, others, *taus))
    same(
        [part.double() for part in muscle_loss_and_grad(x, others, *taus)],
        value_and_gradient(literal, x.double(), [other.double() for other in others], *taus),
        rtol=1e-6,
    )


def test_one_row_has_nothing_to_tell_apart():
    loss, grad = muscle_loss_and_grad(units(1), batches(3, 1))
    assert loss.abs() < 1e-12 and grad.abs().max() < 1e-12
    assert muscle_loss_from_tuples(units(1), *tuple_matrix(batches(3, 1))).abs() < 1e-12


def test_uniform_weights_give_the_log_of_their_number():
    """All rows equal: every tuple weighs the same."""
    z = units(1).expand(5, -1)
    assert muscle_loss(z, [z] * 3).item() == pytest.approx(3 * math.log(5))


@pytest.mark.parametrize("tau_prev", [0.2, 0.3, 0.0, -0.1, math.nan, torch.full((2, 2), 0.2)])
def test_temperatures_out_of_order_are_refused(tau_prev):
    for use in (lambda *a: muscle_loss(units(4), *a), tuple_matrix):
        with pytest.raises(ValueError, match="tau_prev below tau"):
            use(batches(2, 4), 0.2, tau_prev)


def test_tables_that_are_no_tables_are_refused():
    x, others = units(4), batches(2, 4)
    for wrong in (torch.full((2, 2), 0.2), torch.tensor([0.2, 0.2])):
        with pytest.raises(ValueError, match="tau must be a number or a symmetric table 3 × 3"):
            muscle_loss(x, others, wrong)
    with pytest.raises(ValueError, match="tau_prev must be"):
        muscle_loss(x, others, 0.2, torch.tensor([[0.1, 0.1], [0.12, 0.1]]))
    with pytest.raises(ValueError, match="positive"):
        muscle_loss(x, others[:1], -0.2)


@pytest.mark.parametrize("others", [[], [units(3)], [units(4), units(4, 5)], [units(4)[0]]])
def test_shapes_that_do_not_fit_are_refused(others):
    with pytest.raises(ValueError, match="anchor's shape"):
        muscle_loss(units(4), others)


def test_temperatures_beyond_float64_are_refused():
    anchor, *others = (units(4, seed=seed) for seed in range(4))
    assert muscle_loss(-others[0], others, 0.2, 1 / 120).isfinite()  # γ = 115 of three pairs, counted both ways
    with pytest.raises(ValueError, match="add up to 720"):
        muscle_loss(anchor, others, 0.2, 1 / 125)


def test_no_rows_and_no_others_are_refused():
    for use in (lambda others: muscle_loss(units(0), others), tuple_matrix):
        for others in ([], [units(0)]):
            with pytest.raises(ValueError, match="batches"):
                use(others)


def test_the_paper_s_message_has_a_limit():
    S, log_alpha = tuple_matrix(batches(3, 4))
    assert S.shape == (64, 6) and log_alpha.shape == (64,)
    with pytest.raises(ValueError, match=r"33\^4 = 1,185,921"):
        tuple_matrix(batches(4, 33))


def test_two_million_tuples_need_under_10_mb():
    anchor, *others = (units(128, 256, seed, torch.float32) for seed in range(4))
    anchor.requires_grad_()
    assert 0 < peak_memory(lambda: muscle_loss(anchor, others).backward()) < 10e6
