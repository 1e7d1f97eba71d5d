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
from strategies.base import Reply
from strategies.towers import Towers, moved


class FedIoT(Towers):
    """Multimodal FedAvg."""

    def averaged(self, t: str, name: str, w: Tensor, replies: Mapping[str, list[Reply]]) -> Tensor:
        """Σ a_k n_k w_k / Σ a_k n_k over those that share the tensor; a_k = α with several modalities, else 1."""
        place = self.places[t][name]
        shared = place.part in ("attention", "mlp", "norm")
        holders = {q: replies[q] for q in (self.having(place.modality) if shared else [t])}
        weights = [self.weight(q) * reply.num_examples for q, sent in holders.items() for reply in sent]
        new = [reply.records["model"][name] for sent in holders.values() for reply in sent]
        return moved(w, new, weights, sum(weights))

    def weight(self, q: str) -> float:
        """a_k of the participants of type q."""
        assert isinstance(self.settings.params, FedIoTParams)
        return self.settings.params.alpha if len(self.modalities[q]) > 1 else 1.0
