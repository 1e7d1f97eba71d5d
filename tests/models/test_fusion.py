"""GFF: a convex mix of its inputs, in two levels."""

import pytest
import torch
from torch.nn import functional as F

from fedapps.models import GFF


def units(rows: int, dim: int = 16) -> torch.Tensor:
    return F.normalize(torch.randn(rows, dim))


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_the_result_is_an_elementwise_convex_mix(rows, training, reuse):
    torch.manual_seed(0)
    gff = GFF(16, reuse_t2=reuse).train(training)
    local, global_ = units(rows), units(rows)
    fused = gff.fuse(local, global_)
    low, high = torch.minimum(local, global_), torch.maximum(local, global_)
    assert fused.shape == local.shape
    assert (fused >= low - 1e-6).all() and (fused <= high + 1e-6).all()
    assert (fused.norm(dim=1) <= 1 + 1e-5).all()


def test_equal_inputs_come_back():
    x = units(5)
    torch.testing.assert_close(GFF(16).fuse(x, x), x)


def test_it_is_the_formula():
    torch.manual_seed(1)
    gff = GFF(16).eval()
    (t1, t2), (u1, u2) = gff.first, gff.second
    local, global_ = units(4), units(4)
    w = torch.sigmoid(t1(local + global_) + t2(local + global_))
    h = w * local + (1 - w) * global_
    w = torch.sigmoid(u1(h) + u2(h))
    torch.testing.assert_close(gff.fuse(local, global_), w * local + (1 - w) * global_)


def test_sizes_are_the_paper_s():
    count = lambda gff: sum(p.numel() for p in gff.parameters())  # noqa: E731
    assert count(GFF(256)) == 134_912
    assert count(GFF(256, reuse_t2=True)) == 101_184


def test_a_batch_of_one_trains_with_running_statistics_as_they_are():
    gff = GFF(16).train()
    gff.fuse(units(8), units(8))
    before = {name: value.clone() for name, value in gff.named_buffers()}
    local, global_ = units(1), units(1)
    fused = gff.fuse(local, global_)
    fused.sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in gff.named_buffers())
    torch.testing.assert_close(fused, gff.eval().fuse(local, global_))


def test_gradients_reach_both_levels_and_the_local_side():
    torch.manual_seed(0)
    gff, local, global_ = GFF(16).train(), units(8).requires_grad_(), units(8)
    gff.fuse(local, global_).square().sum().backward()
    assert local.grad.any() and all(p.grad is not None for p in gff.parameters())
    assert all(p.grad.any() for branch in (*gff.first, *gff.second) for p in branch[3:].parameters() if p.dim() > 1)
