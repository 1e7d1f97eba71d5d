"""FedCola, server half: collaborative aggregation, compensation, and weights for complementary training.

Paper: ECCV 2024, arXiv 2404.12467. A type t of participants (image, text, image–text) has a model w_t. S_t are those of
it that replied, N_t = Σ n_k their samples; for a tensor of modality m, q are the other types that have m. Averages are
true means over tensors of exactly the same modality; the released code interpolates one participant after the other
(``fedcola.aggregate=sequential``) and finds modalities by parts of names. Each tower has a last norm of its own; in the
released code an image–text model's two towers share it.

Beyond the paper: with ``fedcola.aux-send=changes`` a participant gets only those layers of W_out that it does not have,
bit for bit, and a hash of the others. It has the W_out of the last round that it replied in, or else its own weights.
That saves the layers that nobody has moved since: all in the first round if all towers start alike; later the MLPs of a
modality while none of its own type replies, and its attention while no image–text participant does either (or without
collab). Where every type replies in each round everything has changed, and all is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedapps import wire
from fedapps.learner import build_encoders
from fedapps.methods import FedColaParams
from fedapps.models.unified import linears
from strategies.average import Tensors
from strategies.base import Content, Reply
from strategies.towers import Models, Towers, moved


class FedCola(Towers):
    """Federated learning with collaborative aggregation and complementary local training of Transformers."""

    def setup(self) -> None:
        super().setup()
        encoder = next(iter(build_encoders(self.scenario.participants[0], self.scenario.dim).values()))
        self.layers = list(linears(encoder, self.params.aux))  # of the same names in every tower
        self.kept: dict[str, dict[str, Tensor]] = {}  # participant -> layer -> hash of the W_out that it keeps

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.kept = {}  # they may have replied since, or lost it: all is sent once

    def train_round(self, server_round: int) -> None:
        each, params = self.content(self.chosen), self.params
        W_out = {t: self.auxiliary(t) if params.complementary else {} for t in self.theta}
        hashes = {t: hashed(aux) if params.aux_send == "changes" else {} for t, aux in W_out.items()}
        packed: dict[tuple[str, ...], Content] = {}  # what several participants get is one object
        for name in self.chosen:
            t = self.group[name]
            same = self.known(name, hashes[t])
            rest = {layer: W for layer, W in W_out[t].items() if layer not in same}
            parts = {record: tensors for record, tensors in (("aux", rest), ("same", same)) if tensors}
            each[name] |= packed.setdefault((t, *same), parts)
        replies = self.train(each)
        # Of one that did not answer nobody knows what it keeps.
        self.kept |= {name: hashes[self.group[name]] if name in replies else {} for name in self.chosen}

    def train(self, each: Mapping[str, Content]) -> Mapping[str, Reply]:
        if self.params.aggregate == "mean":
            return super().train(each)
        replies = self.ask("train", each=each)  # one after the other, in the order of the scenario
        models: dict[str, list[tuple[Tensors, float]]] = {t: [] for t in self.theta}
        for name, reply in replies.items():
            models[self.group[name]].append((reply.records["model"], reply.num_examples))
        self.aggregate(models)
        return replies

    def known(self, name: str, hashes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of the hashes, by layer, whose weights a participant has: those that it keeps or, where it keeps none,
        those of its own model."""
        t = self.group[name]
        own = {layer: self.theta[t][f"encoders.{self.modalities[t][0]}.{layer}.weight"] for layer in hashes}
        has = self.kept.get(name) or hashed(own)
        return {layer: found for layer, found in hashes.items() if torch.equal(found, has[layer])}

    def averaged(self, t: str, name: str, w: Tensor, models: Mapping[str, Models]) -> Tensor:
        """w_t ← w_t + Ω ∇w̄: for attention Σ_{S_t ∪ S_q} n_k (w_k - w_t) / (N_t + N_q), for all else
        Σ_{S_t} n_k (w_k - w_t) / (N_t + N_q), or without compensation / N_t. N_q = 0 where nobody of q replied."""
        params, place, own = self.params, self.places[t][name], models[t]
        both = [of_k for q in self.having(place.modality) for of_k in models[q]] if params.collab else own
        holders = both if place.part == "attention" else own
        N = sum(n_k for _, n_k in (both if params.compensate else holders))
        new = [w_k[name] for w_k, _ in holders]
        return moved(w, new, [n_k for _, n_k in holders], N, params.aggregate == "sequential")

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


def hashed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A hash of each."""
    return {layer: wire.content_hash(W) for layer, W in weights.items()}
