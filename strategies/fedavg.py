"""FedAvg, server half: average whole models.

Paper: McMahan et al., AISTATS 2017, arXiv 1602.05629. w = Σ n_k w_k / Σ n_k over the sampled participants k, BatchNorm
statistics included. All participants of a modality must have the same model.

Of image, text and image–text participants each type has a model of its own, as in FedCola's comparison (ECCV 2024):
towers, embeddings and head are averaged over those of one modality, task and label set, and nothing passes between
types. Parameters of a loss (PCME's scale and shift) do not travel and start anew in each round.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedapps.learner import build_encoders, build_learner
from fedapps.models import Model
from fedapps.seeds import seed_of
from strategies.average import Average


class FedAvg(Average):
    """Federated averaging of the whole model."""

    travels = "model"

    def types(self) -> dict[str, str]:
        """Participant -> type: whose whole models are alike."""
        entries = self.scenario.by_name
        return {
            name: f"{entries[name].modality}-{entries[name].task.name}-{group}"
            for name, group in super().types().items()
        }

    def build(self, name: str) -> dict[str, Tensor]:
        return self.first_model(name).state_dict()

    def first_model(self, name: str) -> Model:
        """The model that participant ``name`` starts from; encoders start from one seed, whatever else a model has."""
        entry, dim, seed = self.scenario.by_name[name], self.scenario.dim, ("init", self.settings.seed, "fedavg")
        model, _ = build_learner(entry, dim, self.classes[name], *seed[1:])
        for modality in entry.modalities[1:]:
            torch.manual_seed(seed_of(*seed))
            model.encoders[modality] = build_encoders(entry, dim, (modality,))[modality]
        return model
