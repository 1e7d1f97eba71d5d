"""FedIoT, server half: average each modality's tower over all that have the modality.

Paper: Zhao, Barnaghi, Haddadi, IoTDI 2022, arXiv 2109.04833. A participant counts n_k, one with several modalities
α n_k. As in FedCola's comparison, towers (blocks and last norm) are shared between image or text participants and
image–text participants; embeddings and heads are averaged inside each type. The original has autoencoders of sensor
data in the place of Transformers, and equal n_k.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedapps.methods import FedIoTParams
from strategies.towers import Models, Towers, moved


class FedIoT(Towers):
    """Multimodal FedAvg."""

    def averaged(self, t: str, name: str, w: Tensor, models: Mapping[str, Models]) -> Tensor:
        """Σ a_k n_k w_k / Σ a_k n_k over those that share the tensor; a_k = α with several modalities, else 1."""
        place = self.places[t][name]
        shared = place.part in ("attention", "mlp", "norm")
        holders = {q: models[q] for q in (self.having(place.modality) if shared else [t])}
        weights = [self.weight(q) * n_k for q, of_type in holders.items() for _, n_k in of_type]
        new = [w_k[name] for of_type in holders.values() for w_k, _ in of_type]
        return moved(w, new, weights, sum(weights))

    def weight(self, q: str) -> float:
        """a_k of the participants of type q."""
        assert isinstance(self.settings.params, FedIoTParams)
        return self.settings.params.alpha if len(self.modalities[q]) > 1 else 1.0
