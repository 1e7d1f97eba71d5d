"""FD, server half: for each participant and label, what the others' models say on average.

Paper: Jeong et al., "Communication-Efficient On-Device Machine Learning", 2018, arXiv 1811.11479, federated
distillation. F̄_k[l] [C] is the mean softmax output of participant k on its samples of label l; of the K_l participants
that hold l, participant i gets

    F̂_i[l] = (Σ_k F̄_k[l] - F̄_i[l]) / (K_l - 1)

or the mean of all K_l if it does not hold l itself. The later re-implementation leaves i in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from strategies import bounds
from strategies.average import Tensors, groups
from strategies.base import Reply, Strategy


class FD(Strategy):
    """Federated distillation: mean outputs by label are all that travels.

    Each participant counts with what it sent last, also in rounds that it is not drawn for.
    """

    def setup(self) -> None:
        self.group = groups(self)
        self.outputs: dict[str, Tensors] = {}  # participant -> its F̄ (means) [C, C] and counts [C]

    def state_dict(self) -> dict[str, Any]:
        return {"outputs": self.outputs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.outputs = dict(state["outputs"])

    def train_round(self, server_round: int) -> None:
        replies = self.ask("train", each=self.targets(self.chosen))
        self.outputs |= {name: reply.records["outputs"] for name, reply in replies.items()}

    def check(self, name: str, reply: Reply) -> None:
        """Outputs must be probabilities, for labels of its own samples."""
        if outputs := reply.records.get("outputs"):
            bounds.counts(outputs["counts"], reply.num_examples)
            bounds.probabilities(outputs["means"][outputs["counts"] > 0])

    def targets(self, names: Sequence[str]) -> dict[str, dict[str, Tensors]]:
        """F̂ for each participant whose group has sent anything yet."""
        content: dict[str, dict[str, Tensors]] = {}
        for group in dict.fromkeys(self.group[name] for name in names):
            sent = {name: outputs for name, outputs in self.outputs.items() if self.group[name] == group}
            if sent:
                means = means_of_others(sent, [name for name in names if self.group[name] == group])
                content |= {name: {"targets": {"means": mean}} for name, mean in means.items()}
        return content


def means_of_others(sent: Mapping[str, Tensors], names: Sequence[str]) -> dict[str, Tensor]:
    """F̂_i [C, C] for each i in ``names``, where ``sent`` holds each participant's means [C, C] and counts [C].

    Plain means, not weighted by counts. A label that nobody else holds has a row of zeros.
    """
    held = {name: (outputs["counts"] > 0).double().unsqueeze(1) for name, outputs in sent.items()}  # [C, 1]
    parts = {name: held[name] * outputs["means"].double() for name, outputs in sent.items()}
    total, holders = torch.stack([*parts.values()]).sum(dim=0), torch.stack([*held.values()]).sum(dim=0)
    nothing, found = torch.zeros(()), {}
    for name in names:
        own, holds = parts.get(name, nothing), held.get(name, nothing)
        others = holders - holds  # K_l - 1, or K_l where i does not hold l
        mean = (total - own) / others.clamp(min=1)
        found[name] = ((others > 0) * mean.clamp(min=0)).float()  # a difference may round to -1e-17
    return found
