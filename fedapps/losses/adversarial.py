"""The adversarial game of FedAFD's bi-directional alignment (BAA): discriminator against encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Discriminator(nn.Module):
    """Tells global (real) from local (fake) representations: d → 128 → 64 → 1, LeakyReLU(0.2), raw logits.

    ``double_sigmoid`` puts a sigmoid before the losses' own one, as the released code does; it can then never
    call anything fake.
    """

    def __init__(self, dim: int, double_sigmoid: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(dim, 128), nn.LeakyReLU(0.2), nn.Linear(128, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
        )
        self.double_sigmoid = double_sigmoid

    def forward(self, z: Tensor) -> Tensor:
        """Logits ``[B]`` of being real, for ``z [B, d]``."""
        logits = self.layers(z).squeeze(1)
        return torch.sigmoid(logits) if self.double_sigmoid else logits


def discriminator_loss(discriminator: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    """-log D(real) - log(1 - D(fake)), means over the rows; moves the discriminator only."""
    return _cross_entropy(discriminator(real.detach()), 1.0) + _cross_entropy(discriminator(fake.detach()), 0.0)


def generator_loss(discriminator: nn.Module, fake: Tensor) -> Tensor:
    """-log D(fake), the non-saturating form, mean over the rows; moves what made ``fake`` only."""
    frozen = {name: value.detach() for name, value in discriminator.named_parameters()}
    return _cross_entropy(torch.func.functional_call(discriminator, frozen, (fake,)), 1.0)


def _cross_entropy(logits: Tensor, label: float) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))
