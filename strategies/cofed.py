"""CoFED, server half: a public sample gets a class if enough of the participants that own the class say so.

Paper: Cao et al., "CoFED: Cross-silo Heterogeneous Federated Multi-task Learning via Co-training", 2022,
arXiv 2202.08603. With α = ``cofed.threshold``, a public sample is of class c if more than a share α of those that own c
gave it that pseudo-label; a participant gets the classes that it owns, and no sample that fell into several of these.
Each participant has one vote, as in the authors' code.

Of several labels a sample (multilabel, not in the paper) each is voted on by itself: present, absent, or neither where
both or none of the two have enough votes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedapps.methods import CoFEDParams
from strategies import bounds
from strategies.average import ByLabelSet
from strategies.base import Content, Reply


class CoFED(ByLabelSet):
    """Co-training of participants with the same labels, in rounds where the paper has a single exchange.

    Each participant counts with what it sent last, also in rounds that it is not drawn for.
    """

    def check(self, name: str, reply: Reply) -> None:
        """Votes must be for classes that there are."""
        if votes := reply.records.get("votes"):
            several = self.scenario.by_name[name].task.name == "multilabel"
            bounds.between(-1, votes["labels"], 1 if several else self.classes[name] - 1)
            bounds.between(0, reply.records["owned"]["classes"], 1)

    def content(self, names: Sequence[str]) -> dict[str, Content]:
        assert isinstance(self.settings.params, CoFEDParams)
        found: dict[str, Content] = {}
        for group in dict.fromkeys(self.group[name] for name in names):
            sent = self.sent_by(group)
            labels = {name: records["votes"]["labels"] for name, records in sent.items()}
            owned = {name: records["owned"]["classes"] > 0 for name, records in sent.items()}
            result = vote(labels, owned, self.settings.params.threshold)
            found |= {name: {"targets": {"labels": target}} for name, target in result.items()}
        return found


def vote(labels: Mapping[str, Tensor], owned: Mapping[str, Tensor], threshold: float) -> dict[str, Tensor]:
    """The targets of each participant that voted, int64 like its ``labels``; -1 is none.

    ``labels`` are pseudo-labels by participant: classes [P] or, of several labels a sample, 1 present and 0 absent
    [P, C]; -1 is no vote. ``owned`` [C] are the classes in its training data.
    """
    if not labels:
        return {}
    owners = list(owned.values())
    if next(iter(labels.values())).ndim == 1:
        classes = torch.arange(len(owners[0]))
        found = agreed((label.unsqueeze(1) == classes for label in labels.values()), owners, threshold)
        return {name: only_one(found & mine) for name, mine in owned.items()}
    present, absent = (agreed((label == value for label in labels.values()), owners, threshold) for value in (1, 0))
    return {name: torch.where(mine & (present != absent), present.long(), -1) for name, mine in owned.items()}


def agreed(said: Iterable[Tensor], owned: Sequence[Tensor], threshold: float) -> Tensor:
    """Where more than a share ``threshold`` of a class's owners say so, bool [P, C]; nowhere if nobody owns it.

    ``said`` [P, C] and ``owned`` [C] are bool, of each participant.
    """
    votes: Tensor = sum((yes & own).double() for yes, own in zip(said, owned, strict=True))  # type: ignore[assignment]
    owners = torch.stack(list(owned)).sum(dim=0)
    return votes / owners.clamp(min=1) > threshold


def only_one(found: Tensor) -> Tensor:
    """The class [P] of samples in exactly one of the classes of ``found`` [P, C], else -1."""
    return torch.where(found.sum(dim=1) == 1, found.int().argmax(dim=1), -1)
