"""Losses of the published methods, each a plain function or module."""

from fedapps.losses.adversarial import Discriminator, discriminator_loss, generator_loss
from fedapps.losses.alignment import alignment, alignment_and_grad
from fedapps.losses.cka import centred_gram, cka, linear_cka
from fedapps.losses.contrastive import gramian, nt_xent, pairwise
from fedapps.losses.distill import kd_loss, sed_aggregate, sed_weights
from fedapps.losses.infonce import infonce
from fedapps.losses.muscle import muscle_loss, muscle_loss_and_grad, muscle_loss_from_tuples, tuple_matrix
from fedapps.losses.pcme import PCMELoss

__all__ = [
    "Discriminator",
    "PCMELoss",
    "alignment",
    "alignment_and_grad",
    "centred_gram",
    "cka",
    "discriminator_loss",
    "generator_loss",
    "gramian",
    "infonce",
    "kd_loss",
    "linear_cka",
    "muscle_loss",
    "muscle_loss_and_grad",
    "muscle_loss_from_tuples",
    "nt_xent",
    "pairwise",
    "sed_aggregate",
    "sed_weights",
    "tuple_matrix",
]
