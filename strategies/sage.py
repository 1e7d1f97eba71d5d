"""SAGE, server half: a global teacher for each participant, the mean of the others with the same labels.

Paper: Liu et al., "Mind the Gap: Confidence Discrepancy Can Guide Federated Semi-Supervised Learning Across
Pseudo-Mismatch", CVPR 2025, arXiv 2503.13227. There the global teacher is the averaged model, which participants with
different models do not have. This is its same-task form: p_g [P, C] is the mean of the probabilities that the other
participants with the same labels give to the public samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from strategies import bounds
from strategies.average import ByLabelSet
from strategies.base import Content, Reply


class SAGE(ByLabelSet):
    """Semi-supervised learning with a local and a global teacher, among participants with the same labels.

    Each participant counts with what it sent last, also in rounds that it is not drawn for.
    """

    def check(self, name: str, reply: Reply) -> None:
        """Probabilities must be such."""
        if public := reply.records.get("public"):
            bounds.probabilities(public["p"], self.scenario.by_name[name].task.name == "classification")

    def content(self, names: Sequence[str]) -> dict[str, Content]:
        found: dict[str, Content] = {}
        for name in names:
            sent = {other: records["public"]["p"] for other, records in self.sent_by(self.group[name]).items()}
            if (teacher := mean_of_others(sent, name)) is not None:
                found[name] = {"teacher": {"p": teacher}}
        return found


def mean_of_others(sent: Mapping[str, Tensor], name: str) -> Tensor | None:
    """p_g [P, C] of a participant, a plain mean; ``None`` where no other has sent anything yet."""
    others = [p.double() for other, p in sent.items() if other != name]
    return torch.stack(others).mean(dim=0).float() if others else None
