"""Averaging what participants send, and the shared small model that several methods exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedapps.contract import travelling
from fedapps.learner import build_shared
from fedapps.models import Model
from strategies.base import Reply, Strategy

Tensors = Mapping[str, Tensor]


def weighted_mean(states: Sequence[Tensors], weights: Sequence[float]) -> dict[str, Tensor] | None:
    """Σ w_k θ_k / Σ w_k, tensor by tensor, dtype-true; ``None`` where all weights are zero.

    Summed in float64, so that the order of participants does not matter. Integers are counters (BatchNorm's
    ``num_batches_tracked``): the largest is taken, never a mean.
    """
    total = float(sum(weights))
    if total <= 0:
        return None
    mean: dict[str, Tensor] = {}
    for name, first in states[0].items():
        stack = torch.stack([state[name] for state in states])
        if first.is_floating_point():
            shares = torch.tensor([w / total for w in weights], dtype=torch.float64)
            mean[name] = torch.tensordot(shares, stack.double(), dims=1).to(first.dtype)
        else:
            mean[name] = stack.amax(0)
    return mean


class SharedModel(Strategy):
    """A small model beside each participant's own is all that travels; the server averages it by samples.

    Participants of one modality and one number of classes share one model θ.
    """

    def setup(self) -> None:
        self.group = {
            name: f"{entry.modalities[0]}-{self.classes[name]}" for name, entry in self.scenario.by_name.items()
        }
        self.theta: dict[str, Model] = {}
        dim = self.settings.params.shared_dim(self.scenario.dim)
        for group in dict.fromkeys(self.group.values()):
            modality, _, classes = group.rpartition("-")
            self.theta[group] = build_shared(self.scenario, modality, dim, int(classes), self.settings.seed)

    def parts(self) -> dict[str, Any]:
        return self.theta

    def shared(self, names: Sequence[str]) -> dict[str, dict[str, dict[str, Tensor]]]:
        """θ for each participant."""
        states = {group: travelling(model, self.settings.params) for group, model in self.theta.items()}
        return {name: {"shared": states[self.group[name]]} for name in names}

    def train_round(self, server_round: int) -> None:
        self.aggregate(self.ask("train", each=self.shared(self.chosen)))

    def aggregate(self, replies: Mapping[str, Reply]) -> None:
        """θ = Σ n_k θ_k / Σ n_k over the participants of its group; a θ that nobody sent stays."""
        for group, model in self.theta.items():
            mine = [reply for name, reply in replies.items() if self.group[name] == group]
            if mine:
                weights = [reply.num_examples for reply in mine]
                mean = weighted_mean([reply.records["shared"] for reply in mine], weights)
                model.load_state_dict(mean or {}, strict=False)

    def evaluate_content(self, names: list[str]) -> dict[str, dict[str, dict[str, Tensor]]]:
        return self.shared(names)
