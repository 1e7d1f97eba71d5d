"""FedKD, server half: add up low-rank updates of the mentee θ that participants train beside their own mentor.

Paper: Wu et al., Nature Communications 13 (2022), arXiv 2108.13323. θ ← θ + Σ n_k Δθ_k / Σ n_k, where Δθ_k comes as
truncated singular value decompositions. θ goes down whole, so that participants that missed rounds need no history.
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Message

from fedapps import wire
from fedapps.low_rank import expand
from strategies.average import SharedModel, weighted_mean
from strategies.base import Reply


class FedKD(SharedModel):
    """Communication-efficient federated learning by adaptive mutual distillation."""

    def open(self, phase: str, name: str, message: Message) -> Reply:
        """A reply whose update leaves θ finite, once its factors are multiplied."""
        reply = super().open(phase, name, message)
        if update := reply.records.get("update"):
            theta = self.theta[self.group[name]]
            delta = expand(update, theta)
            if bad := wire.non_finite({key: tensor + delta[key] for key, tensor in theta.items()}):
                raise wire.WireError(f"its update of '{bad}' is beyond float32")
        return reply

    def aggregate(self, replies: Mapping[str, Reply]) -> None:
        """θ of each group with the mean of its participants' updates; a θ that nobody sent stays."""
        for group, theta in self.theta.items():
            mine = [reply for name, reply in replies.items() if self.group[name] == group]
            updates = [expand(reply.records["update"], theta) for reply in mine]
            mean = weighted_mean(updates, [reply.num_examples for reply in mine]) if mine else None
            if mean is not None:
                self.theta[group] = {name: tensor + mean[name] for name, tensor in theta.items()}
