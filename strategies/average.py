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
