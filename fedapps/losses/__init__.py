"""Losses of the published methods, each a plain function or module."""

from fedapps.losses.adversarial import Discriminator, discriminator_loss, generator_loss
from fedapps.losses.distill import kd_loss, sed_aggregate, sed_weights
from fedapps.losses.infonce import infonce
from fedapps.losses.pcme import PCMELoss

__all__ = [
    "Discriminator",
    "PCMELoss",
    "discriminator_loss",
    "generator_loss",
    "infonce",
    "kd_loss",
    "sed_aggregate",
    "sed_weights",
]
