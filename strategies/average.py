"""Averaging what participants send, and the shared small model that several methods exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedapps.contract import travelling
from fedapps.learner import build_shared
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


def groups(strategy: Strategy) -> dict[str, str]:
    """Participant -> group: those of one modality and one number of classes exchange with each other."""
    entries = strategy.scenario.by_name
    return {name: f"{entry.modalities[0]}-{strategy.classes[name]}" for name, entry in entries.items()}


class Average(Strategy):
    """What participants send under the name ``travels`` is averaged by samples: one state θ for each group."""

    travels = "shared"

    def build(self, name: str) -> dict[str, Tensor]:
        """The first θ of the group that participant ``name`` belongs to."""
        raise NotImplementedError

    def setup(self) -> None:
        self.group = groups(self)
        first = {group: name for name, group in reversed(self.group.items())}
        self.theta = {group: self.build(name) for group, name in first.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"theta": self.theta}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.theta = dict(state["theta"])

    def content(self, names: Sequence[str]) -> dict[str, dict[str, Tensors]]:
        """θ for each participant."""
        return {name: {self.travels: self.theta[self.group[name]]} for name in names}

    def train_round(self, server_round: int) -> None:
        self.aggregate(self.ask("train", each=self.content(self.chosen)))

    def aggregate(self, replies: Mapping[str, Reply]) -> None:
        """θ = Σ n_k θ_k / Σ n_k over the participants of its group; a θ that nobody sent stays."""
        for group, old in self.theta.items():
            mine = [reply for name, reply in replies.items() if self.group[name] == group]
            if mine:
                weights = [reply.num_examples for reply in mine]
                self.theta[group] = weighted_mean([reply.records[self.travels] for reply in mine], weights) or old

    def evaluate_content(self, names: list[str]) -> dict[str, dict[str, Tensors]]:
        return self.content(names)


class SharedModel(Average):
    """A small model beside each participant's own is all that travels."""

    def build(self, name: str) -> dict[str, Tensor]:
        params = self.settings.params
        dim, modality = params.shared_dim(self.scenario.dim), self.scenario.by_name[name].modalities[0]
        model = build_shared(self.scenario, modality, dim, self.classes[name], self.settings.seed)
        return travelling(model, params)
