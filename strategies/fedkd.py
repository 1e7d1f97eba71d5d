"""FedKD, server half: add up low-rank updates of the mentee θ that participants train beside their own mentor.

Paper: Wu et al., Nature Communications 13 (2022), arXiv 2108.13323. θ ← θ + Σ n_k Δθ_k / Σ n_k, where Δθ_k comes as
truncated singular value decompositions. θ goes down whole, so that participants that missed rounds need no history.
"""

from __future__ import annotations

from torch import Tensor

from fedapps import wire
from fedapps.low_rank import expand
from strategies.average import SharedModel
from strategies.base import Reply


class FedKD(SharedModel):
    """Communication-efficient federated learning by adaptive mutual distillation."""

    def trained(self, name: str, reply: Reply) -> dict[str, Tensor]:
        """θ + Δθ_k."""
        theta = self.theta[self.group[name]]
        update = expand(reply.records["update"], theta)
        return {key: tensor + update[key] for key, tensor in theta.items()}

    def check(self, name: str, reply: Reply) -> None:
        """The update must leave θ finite, once its factors are multiplied."""
        if "update" in reply.records and (bad := wire.non_finite(self.trained(name, reply))):
            raise wire.WireError(f"its update of '{bad}' is beyond float32")
