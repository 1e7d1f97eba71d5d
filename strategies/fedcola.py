"""FedCola, server half: collaborative aggregation, compensation, and weights for complementary training.

Paper: ECCV 2024, arXiv 2404.12467. A type t of participants (image, text, image–text) has a model w_t. S_t are those of
it that replied, N_t = Σ n_k their samples; for a tensor of modality m, q are the other types that have m. Averages are
true means over tensors of exactly the same modality; the released code interpolates one participant after the other
(``fedcola.aggregate=sequential``) and finds modalities by parts of names. Each tower has a last norm of its own; in the
released code an image–text model's two towers share it.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedapps.learner import build_encoders
from fedapps.methods import FedColaParams
from fedapps.models.unified import linears
from strategies.base import Reply
from strategies.towers import Towers, moved


class FedCola(Towers):
    """Federated learning with collaborative aggregation and complementary local training of Transformers."""

    def setup(self) -> None:
        super().setup()
        encoder = next(iter(build_encoders(self.scenario.participants[0], self.scenario.dim).values()))
        self.layers = list(linears(encoder, self.params.aux))  # of the same names in every tower

    def train_round(self, server_round: int) -> None:
        each = self.content(self.chosen)
        if self.params.complementary:
            W_out = {t: self.auxiliary(t) for t in self.theta}
            for name in self.chosen:
                if aux := W_out[self.group[name]]:
                    each[name] |= {"aux": aux}
        self.aggregate(self.ask("train", each=each))

    def averaged(self, t: str, name: str, w: Tensor, replies: Mapping[str, list[Reply]]) -> Tensor:
        """w_t ← w_t + Ω ∇w̄: for attention Σ_{S_t ∪ S_q} n_k (w_k - w_t) / (N_t + N_q), for all else
        Σ_{S_t} n_k (w_k - w_t) / (N_t + N_q), or without compensation / N_t. N_q = 0 where nobody of q replied."""
        params, place, own = self.params, self.places[t][name], replies[t]
        both = [reply for q in self.having(place.modality) for reply in replies[q]] if params.collab else own
        holders = both if place.part == "attention" else own
        N = sum(reply.num_examples for reply in (both if params.compensate else holders))
        new = [reply.records["model"][name] for reply in holders]
        return moved(w, new, [reply.num_examples for reply in holders], N, params.aggregate == "sequential")

    def auxiliary(self, t: str) -> dict[str, Tensor]:
        """W_out of a type with one modality, by layer: the other modality's weights, of the type that has it alone or
        else of one that has both; empty where there is none."""
        (own, *more) = self.modalities[t]
        sources = [(len(have), q, m) for q, have in self.modalities.items() for m in have if m != own]
        if more or not sources:
            return {}
        _, q, m = min(sources, key=lambda source: source[0])
        return {layer: self.theta[q][f"encoders.{m}.{layer}.weight"] for layer in self.layers}

    @property
    def params(self) -> FedColaParams:
        assert isinstance(self.settings.params, FedColaParams)
        return self.settings.params
