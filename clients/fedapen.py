"""FedAPEN, client half: own model ω_k and shared model θ learn from each other and from their ensemble.

Paper: Qin et al., "FedAPEN: Personalized Cross-silo Federated Learning with Adaptability to Statistical
Heterogeneity", KDD 2023. With logits o_p of ω_k and o_s of θ, sg for a fixed teacher:
L_p = CE(o_p) + KL(sg p_s ‖ p_p) + CE(λ·o_p + (1-λ)·sg o_s), L_s likewise. λ ∈ [0, 1] is learned on held-out private
rows once the averaged θ has come, and used in training and inference.
"""

from __future__ import annotations

import math

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional as F

from clients.base import Means, control, evaluate, kl
from fedapps.learner import View, build_optimizer, plain, set_rate, step
from fedapps.methods import FedAPENParams
from fedapps.models import Model, head_of
from fedapps.participant import Participant
from fedapps.scenario import Modality
from fedapps.seeds import generator

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Learn λ, then local epochs on L_p + L_s; θ travels."""
    me = Participant(msg, context)
    apen = FedAPEN(me)
    apen.learn_weight()
    optimizer = build_optimizer(me.spec.train, apen.shared.parameters())
    set_rate(optimizer, me.spec.train, me.round, me.settings.num_server_rounds)
    me.model.train()
    apen.shared.train()
    means = Means()
    for _ in range(me.settings.local_epochs):
        for rows in apen.batches():
            L_p, L_s = apen.losses(rows)
            step(L_p + L_s, [me.optimizer, optimizer], me.spec.train.clip)
            means.add(task_loss=L_p, shared_loss=L_s)
    me.keep(weight=apen.weight)
    metrics = means.result() | {"ensemble_weight": apen.weight.value.item()}
    return me.reply({"shared": apen.shared.state_dict()}, metrics)


@app.evaluate()
def test(msg: Message, context: Context) -> Message:
    """The test of the ensemble with θ as it comes."""
    me = Participant(msg, context)
    return me.reply(evaluate=FedAPEN(me).evaluate)


class Weight(nn.Module):
    """λ, the own model's share in the ensemble."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(0.5))


class FedAPEN:
    """A participant's ensemble: own model, shared model as it came, and the weight between them."""

    def __init__(self, me: Participant) -> None:
        self.me = me
        assert isinstance(me.settings.params, FedAPENParams)
        self.params = me.settings.params
        self.modality: Modality = me.spec.modalities[0]
        self.shared = me.shared_model()
        self.weight = Weight().to(me.device)
        me.restore(weight=self.weight)
        order = torch.randperm(len(me.train), generator=generator(me.settings.seed, "held-out", me.name))
        share = round(self.params.held_out * len(order), 9)  # 0.07 of 100 is 7.000000000000001
        count = max(min(max(math.ceil(share), 1), len(order) - 1), 0)  # a row is left to train on
        self.held_out, self.rows = order[:count], order[count:]

    def batches(self) -> list[Tensor]:
        """One epoch over the private rows that are not held out."""
        return [self.rows[rows] for rows in self.me.batches(self.rows)]

    def logits(self, model: Model, view: View, rows: Tensor) -> Tensor:
        return head_of(model)(plain(model)(view, self.modality, rows))

    def ensemble(self, own: Tensor, shared: Tensor) -> Tensor:
        """λ·o_p + (1-λ)·o_s [B, C]."""
        return self.weight.value * own + (1 - self.weight.value) * shared

    def learn_weight(self) -> None:
        """SGD on CE(λ·o_p + (1-λ)·o_s) over the held-out rows, λ kept in [0, 1]; both models fixed."""
        if not len(self.held_out):
            return
        me = self.me
        me.model.eval()
        self.shared.eval()
        with torch.no_grad():
            own, shared = (self.logits(model, me.train, self.held_out) for model in (me.model, self.shared))
        optimizer = torch.optim.SGD(self.weight.parameters(), lr=self.params.weight_learning_rate)
        for _ in range(self.params.weight_epochs):
            step(F.cross_entropy(self.ensemble(own, shared), me.train.targets(self.held_out)), [optimizer])
            self.weight.value.data.clamp_(0, 1)

    def losses(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """L_p and L_s on private rows; each moves its own model only, and neither moves λ."""
        me, y = self.me, self.me.train.targets(rows)
        own, shared = self.logits(me.model, me.train, rows), self.logits(self.shared, me.train, rows)
        lam = self.weight.value.detach()
        L_p = F.cross_entropy(own, y) + kl(shared, own)
        L_s = F.cross_entropy(shared, y) + kl(own, shared)
        L_p = L_p + F.cross_entropy(lam * own + (1 - lam) * shared.detach(), y)
        L_s = L_s + F.cross_entropy(lam * own.detach() + (1 - lam) * shared, y)
        return L_p, L_s

    def evaluate(self) -> dict[str, float]:
        """Tests of the ensemble (the method's inference) and, as controls, of the two models alone."""
        me = self.me
        self.shared.eval()

        def both(view: View, modality: Modality, rows: Tensor) -> Tensor:
            return self.ensemble(*(self.logits(model, view, rows) for model in (me.model, self.shared)))

        metrics = evaluate(me, both, nn.Identity())
        for name, model in (("local", me.model), ("shared", self.shared)):
            metrics |= control(me, name, plain(model), head_of(model))
        return metrics
