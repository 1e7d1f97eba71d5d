"""SED and distillation."""

import pytest
import torch
from torch.nn import functional as F

from fedapps.losses import kd_loss, sed_aggregate, sed_weights
from tests.helpers import peak_memory


def units(rows: int, dim: int = 8) -> torch.Tensor:
    return F.normalize(torch.randn(rows, dim))


def dense(clients, server, temperature=1.0):
    scores = [(c @ server.T / temperature).log_softmax(1).diagonal() for c in clients]
    return torch.stack(scores).softmax(0)


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_blockwise_is_dense_and_sums_to_one(block, temperature):
    torch.manual_seed(0)
    clients, server = [units(65) for _ in range(3)], units(65)
    weights = sed_weights(clients, server, temperature, block)
    assert weights.shape == (3, 65)
    torch.testing.assert_close(weights.sum(0), torch.ones(65))
    torch.testing.assert_close(weights, dense(clients, server, temperature), atol=2e-6, rtol=1e-5)
    total = sum(w[:, None] * c for w, c in zip(weights, clients, strict=True))
    torch.testing.assert_close(sed_aggregate(clients, server, temperature, block), total)


def test_equal_clients_give_the_plain_mean_and_one_gives_itself():
    client, server = units(10), units(10)
    torch.testing.assert_close(sed_weights([client] * 4, server), torch.full((4, 10), 0.25))
    torch.testing.assert_close(sed_aggregate([client] * 4, server), client)
    torch.testing.assert_close(sed_aggregate([client], server), client)


def test_the_client_that_agrees_weighs_more_and_order_does_not_matter():
    torch.manual_seed(0)
    server = units(40, 16)
    near, far = F.normalize(server + 0.1 * torch.randn(40, 16)), units(40, 16)
    weights = sed_weights([far, near], server, temperature=0.1)
    assert (weights[1] > 0.5).float().mean() > 0.9
    torch.testing.assert_close(sed_weights([near, far], server, temperature=0.1), weights.flip(0))
    torch.testing.assert_close(sed_aggregate([near, far], server), sed_aggregate([far, near], server))


def test_ten_thousand_samples_need_under_60_mb():
    clients, server = [units(10_000, 128) for _ in range(2)], units(10_000, 128)
    assert peak_memory(lambda: sed_aggregate(clients, server)) < 60e6
    assert peak_memory(lambda: clients[0] @ server.T) == 400e6, "a P x P matrix would be seen"


def test_distances_by_hand():
    student = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    teacher = torch.zeros(2, 2)
    assert kd_loss(student, teacher, "l2").item() == pytest.approx(2.5)
    assert kd_loss(student, teacher, "mse").item() == pytest.approx(6.25)
    with pytest.raises(ValueError, match="l1"):
        kd_loss(student, teacher, "l1")


@pytest.mark.parametrize("metric", ["l2", "mse"])
def test_distillation_moves_the_student_only_and_is_safe_at_zero(metric):
    student, teacher = units(3).requires_grad_(), units(3).requires_grad_()
    kd_loss(student, teacher, metric).backward()
    assert student.grad.any() and teacher.grad is None
    same = units(3).requires_grad_()
    kd_loss(same, same.detach(), metric).backward()
    assert torch.equal(same.grad, torch.zeros(3, 8))
