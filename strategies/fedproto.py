"""FedProto, server half: average the participants' class prototypes.

Paper: Tan et al., AAAI 2022, arXiv 2105.00243. C_i[j] [d] is the mean representation of the samples of class j that
participant i has, n_ij their number; the global prototype is

    C̄[j] = Σ_i n_ij C_i[j] / Σ_i n_ij

over the participants of the round. The paper's equation divides by the number of participants once more, which would
shrink prototypes as participants grow in number; its code takes a plain mean. A class that nobody in this round holds
keeps its last prototype; a released re-implementation forgets it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from strategies import bounds
from strategies.average import Average, Tensors
from strategies.base import Reply


class FedProto(Average):
    """Federated prototype learning; ``known`` [C] is 1 for a class that has a global prototype, else 0."""

    travels = "prototypes"

    def build(self, name: str) -> dict[str, Tensor]:
        classes = self.classes[name]
        return {"means": torch.zeros(classes, self.scenario.dim), "known": torch.zeros(classes)}

    def train_round(self, server_round: int) -> None:
        self.aggregate(self.ask("train", each=self.content(self.chosen)))

    def check(self, name: str, reply: Reply) -> None:
        """Prototypes must be means of representations of its own samples."""
        if prototypes := reply.records.get(self.travels):
            bounds.counts(prototypes["counts"], reply.num_examples)
            bounds.representations(prototypes["means"], self.scenario.by_name[name].unit)

    def aggregate(self, replies: Mapping[str, Reply]) -> None:
        """C̄ of each group."""
        for group, old in self.theta.items():
            sent = [reply.records[self.travels] for name, reply in replies.items() if self.group[name] == group]
            if sent:
                self.theta[group] = mean_prototypes(old, sent)


def mean_prototypes(old: Tensors, sent: Sequence[Tensors]) -> dict[str, Tensor]:
    """C̄ of what participants sent, means [C, d] and counts [C] each; of the ``old`` where all counts are 0."""
    counts = torch.stack([one["counts"] for one in sent]).double().clamp(min=0)  # [K, C]
    means = torch.stack([one["means"] for one in sent]).double()  # [K, C, d]
    total = counts.sum(dim=0)
    held = total > 0
    mean = torch.einsum("kc,kcd->cd", counts, means) / total.where(held, torch.ones_like(total)).unsqueeze(1)
    return {
        "means": mean.float().where(held.unsqueeze(1), old["means"]),
        "known": torch.maximum(old["known"], held.float()),
    }
