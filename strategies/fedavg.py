"""FedAvg, server half: average whole models.

Paper: McMahan et al., AISTATS 2017, arXiv 1602.05629. w = Σ n_k w_k / Σ n_k over the sampled participants k, BatchNorm
statistics included. All participants of a modality must have the same model.
"""

from __future__ import annotations

from torch import Tensor

from fedapps.learner import build_learner
from strategies.average import Average


class FedAvg(Average):
    """Federated averaging of the whole model."""

    travels = "model"

    def build(self, name: str) -> dict[str, Tensor]:
        entry = self.scenario.by_name[name]
        model, _ = build_learner(entry, self.scenario.dim, self.classes[name], self.settings.seed, "fedavg")
        return model.state_dict()
