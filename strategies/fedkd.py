"""FedKD, server half: add up low-rank updates of the mentee θ that participants train beside their own mentor.

Paper: Wu et al., Nature Communications 13 (2022), arXiv 2108.13323. θ ← θ + Σ n_k Δθ_k / Σ n_k, where Δθ_k comes as
truncated singular value decompositions. θ goes down whole, so that participants that missed rounds need no history.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedapps.low_rank import expand
from strategies.average import SharedModel, weighted_mean
from strategies.base import Reply


class FedKD(SharedModel):
    """Communication-efficient federated learning by adaptive mutual distillation."""

    def aggregate(self, replies: Mapping[str, Reply]) -> None:
        """θ of each group with the mean of its participants' updates; a θ that nobody sent stays."""
        for group, theta in self.theta.items():
            mine = [reply for name, reply in replies.items() if self.group[name] == group]
            updates = [expand(reply.records["update"], theta) for reply in mine]
            mean = weighted_mean(updates, [reply.num_examples for reply in mine]) if mine else None
            if mean is not None:
                self.theta[group] = {name: tensor + mean[name] for name, tensor in theta.items()}
