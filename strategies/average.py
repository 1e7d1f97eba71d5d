"""What several server halves share: averaging what participants send, and who exchanges with whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Any

import torch
from flwr.common.logger import log
from torch import Tensor

from fedapps.contract import travelling
from fedapps.learner import build_shared
from strategies.base import Content, Reply, Strategy

Tensors = Mapping[str, Tensor]


class RunningMean:
    """Σ w_k θ_k / Σ w_k, tensor by tensor and dtype-true, of states θ_k that come one after the other.

    Summed in pairs of float64 (the sum, and what rounding has cut off it: Knuth's TwoSum), so that the order in which
    they come does not matter. Integers are counters (BatchNorm's ``num_batches_tracked``): the largest is taken, never
    a mean.
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self.dtype: dict[str, torch.dtype] = {}
        self.sum: dict[str, Tensor] = {}
        self.rest: dict[str, Tensor] = {}

    def add(self, state: Tensors, weight: float) -> None:
        self.weight += weight
        for name, tensor in state.items():
            self.dtype[name] = tensor.dtype
            if not tensor.is_floating_point():
                self.sum[name] = torch.maximum(tensor, self.sum.get(name, tensor))
                continue
            x, old = weight * tensor.double(), self.sum.get(name, torch.zeros_like(tensor, dtype=torch.float64))
            new = old + x
            part = new - old
            self.sum[name] = new
            self.rest[name] = self.rest.get(name, 0.0) + ((old - (new - part)) + (x - part))

    def result(self) -> dict[str, Tensor] | None:
        """The mean; ``None`` where all weights are zero."""
        exact = self.exact()
        return exact and {name: mean.to(self.dtype[name]) for name, mean in exact.items()}

    def exact(self) -> dict[str, Tensor] | None:
        """The mean, floats in float64."""
        if self.weight <= 0:
            return None
        return {
            name: (total + self.rest[name]) / self.weight if name in self.rest else total
            for name, total in self.sum.items()
        }


def groups(strategy: Strategy, across: bool = False) -> dict[str, str]:
    """Participant -> group: those of one modality with the same classes exchange with each other.

    So do only those whose heads take representations of the same scale (``unit``). One alone is told of, unless
    something is exchanged ``across`` groups too.
    """
    entries = strategy.scenario.by_name.items()
    found = {name: f"{entry.modalities[0]}-{entry.unit}-{strategy.labels[name]}" for name, entry in entries}
    sizes = Counter(found.values())
    for name, group in found.items():
        if sizes[group] == 1 and not across:
            log(WARNING, "%s exchanges with nobody: no other participant has its modality and its classes", name)
    return found


class Average(Strategy):
    """What participants send under the name ``travels`` is averaged by samples: one state θ for each group."""

    travels = "shared"
    across = False  # whether groups exchange with each other too

    def build(self, name: str) -> dict[str, Tensor]:
        """The first θ of the group that participant ``name`` belongs to."""
        raise NotImplementedError

    def types(self) -> dict[str, str]:
        """Participant -> the group that it belongs to."""
        return groups(self, self.across)

    def setup(self) -> None:
        self.group = self.types()
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
        """θ = Σ n_k θ_k / Σ n_k over the participants of its group; a θ that nobody sent stays."""
        means = {group: RunningMean() for group in self.theta}
        self.ask(
            "train",
            each=self.content(self.chosen),
            into=lambda name, reply: means[self.group[name]].add(self.trained(name, reply), reply.num_examples),
        )
        self.theta = {group: means[group].result() or old for group, old in self.theta.items()}

    def trained(self, name: str, reply: Reply) -> Tensors:
        """θ_k of a reply."""
        return reply.records[self.travels]

    def evaluate_content(self, names: list[str]) -> dict[str, dict[str, Tensors]]:
        return self.content(names)


class SharedModel(Average):
    """A small model beside each participant's own is all that travels."""

    def build(self, name: str) -> dict[str, Tensor]:
        params = self.settings.params
        dim, modality = params.shared_dim(self.scenario.dim), self.scenario.by_name[name].modalities[0]
        model = build_shared(self.scenario, modality, dim, self.classes[name], self.settings.seed)
        return travelling(model, params)


def label_sets(strategy: Strategy) -> dict[str, str]:
    """Participant -> label set, of those who have theirs in common with another: the same task and the same classes,
    whatever the data set and the modality. Labels are of whole samples, not of pixels."""
    found = {
        name: f"{entry.task.name} of {strategy.labels[name]}"
        for name, entry in strategy.scenario.by_name.items()
        if entry.task.name in ("classification", "multilabel")
    }
    sizes = Counter(found.values())
    return {name: key for name, key in found.items() if sizes[key] > 1}


class ByLabelSet(Strategy):
    """Participants with the same labels tell each other about the public data; the others train alone."""

    def content(self, names: Sequence[str]) -> dict[str, Content]:
        """What participants get of what their group has sent."""
        raise NotImplementedError

    def setup(self) -> None:
        self.group = label_sets(self)
        self.sent: dict[str, dict[str, Tensors]] = {}  # participant -> the records that it sent last

    def state_dict(self) -> dict[str, Any]:
        return {"sent": self.sent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.sent = dict(state["sent"])

    def sent_by(self, group: str) -> dict[str, dict[str, Tensors]]:
        """Participant -> the records that it sent last, of one group."""
        return {name: records for name, records in self.sent.items() if self.group[name] == group}

    def train_round(self, server_round: int) -> None:
        alone = [name for name in self.chosen if name not in self.group]
        together = [name for name in self.chosen if name in self.group]
        good, needed = 0, min(self.settings.min_participants, len(self.chosen))  # of both phases together
        if alone:  # first, so that their random draws are those of a Local run
            good = len(self.ask("alone", to=alone, least=0 if together else needed))
        if together:
            replies = self.ask("train", each=self.content(together), to=together, least=needed - good)
            self.sent |= {name: dict(reply.records) for name, reply in replies.items()}
