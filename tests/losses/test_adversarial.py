"""The two players move their own parameters only."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedapps.losses import Discriminator, discriminator_loss, generator_loss


def players() -> tuple[nn.Linear, Discriminator, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(5, 8), Discriminator(8), torch.randn(6, 5), F.normalize(torch.randn(7, 8))


def test_size_and_shape_are_the_paper_s():
    assert sum(p.numel() for p in Discriminator(256).parameters()) == 41_217
    assert Discriminator(8)(torch.randn(3, 8)).shape == (3,)


def test_a_discriminator_step_leaves_the_encoder_untouched():
    encoder, judge, x, real = players()
    discriminator_loss(judge, real, encoder(x)).backward()
    assert all(p.grad is None for p in encoder.parameters())
    assert all(p.grad.any() for p in judge.parameters())


def test_an_encoder_step_leaves_the_discriminator_untouched():
    encoder, judge, x, _ = players()
    generator_loss(judge, encoder(x)).backward()
    assert all(p.grad.any() for p in encoder.parameters())
    assert all(p.grad is None and p.requires_grad for p in judge.parameters())


def test_steps_do_what_they_are_for():
    encoder, judge, x, real = players()
    judging, encoding = (
        torch.optim.Adam(judge.parameters(), 1e-2),
        torch.optim.Adam(encoder.parameters(), 1e-2),
    )
    for player, loss in (
        (judging, lambda: discriminator_loss(judge, real, encoder(x))),
        (encoding, lambda: generator_loss(judge, encoder(x))),
    ):
        before = loss().item()
        for _ in range(20):
            player.zero_grad()
            loss().backward()
            player.step()
        assert loss().item() < before


@pytest.mark.parametrize("rows", [1, 4])
def test_values_by_hand(rows):
    class Fixed(nn.Module):
        def forward(self, z):
            return z[:, 0]

    real, fake = torch.full((rows, 2), 2.0), torch.full((rows, 2), -1.0)
    sigmoid = lambda v: 1 / (1 + math.exp(-v))  # noqa: E731
    wanted = -math.log(sigmoid(2)) - math.log(1 - sigmoid(-1))
    assert discriminator_loss(Fixed(), real, fake).item() == pytest.approx(wanted, rel=1e-5)
    assert generator_loss(Fixed(), fake).item() == pytest.approx(-math.log(sigmoid(-1)), rel=1e-5)


def test_the_double_sigmoid_cannot_call_anything_fake():
    judge, z = Discriminator(8, double_sigmoid=True), 100 * torch.randn(50, 8)
    assert ((judge(z) >= 0) & (judge(z) <= 1)).all()
    plain = Discriminator(8)
    plain.load_state_dict(judge.state_dict())
    torch.testing.assert_close(judge(z), torch.sigmoid(plain(z)))
