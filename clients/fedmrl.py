"""FedMRL, client half: own and shared representations, fused and nested.

Paper: NeurIPS 2024, arXiv 2406.00488. Of participant k: G_ex, G_hd extractor and head of the shared model θ (size d1),
F_ex, F_hd those of its own model ω_k (size d2), φ_k the projector P. θ travels, ω_k and φ_k never leave.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional as F

from clients.base import Means, control, evaluate
from fedapps.contract import travelling
from fedapps.learner import Represent, View, build_optimizer, plain, representations, set_rate, step
from fedapps.methods import FedMRLParams
from fedapps.models import head_of
from fedapps.participant import Participant
from fedapps.scenario import Modality

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Local epochs on m_G·CE(y_G, y) + m_F·CE(y_F, y): one backward pass updates θ, ω_k and φ_k together."""
    me = Participant(msg, context)
    mrl = FedMRL(me)
    means = Means()
    me.model.train()
    mrl.small.train()
    for _ in range(me.settings.local_epochs):
        for rows in me.batches():
            loss = mrl.loss(rows)
            step(loss, [me.optimizer, mrl.optimizer, mrl.small_optimizer], me.spec.train.clip)
            means.add(task_loss=loss)
    me.keep(**mrl.parts())
    return me.reply({"shared": travelling(mrl.small, mrl.params)}, means.result())


@app.evaluate()
def test(msg: Message, context: Context) -> Message:
    """The test with the averaged θ, also of those that did not train in this round."""
    me = Participant(msg, context)
    return me.reply(evaluate=FedMRL(me).evaluate)


class FedMRL:
    """A participant's three parts: own model ω_k, projector φ_k, and the shared model θ as it came."""

    def __init__(self, me: Participant) -> None:
        self.me = me
        assert isinstance(me.settings.params, FedMRLParams)
        self.params = me.settings.params
        self.modality: Modality = me.spec.modalities[0]
        self.d1, d2 = self.params.d1, me.scenario.dim
        self.small = me.shared_model()  # G_ex, G_hd
        self.projector = nn.Linear(self.d1 + d2, d2).to(me.device)  # P
        self.optimizer = build_optimizer(me.spec.train, self.projector.parameters())
        self.small_optimizer = build_optimizer(me.spec.train, self.small.parameters())
        me.restore(**self.parts())
        for optimizer in (self.optimizer, self.small_optimizer):
            set_rate(optimizer, me.spec.train, me.round, me.settings.num_server_rounds)

    def parts(self) -> dict[str, Any]:
        """What stays with the participant, beside its model."""
        return {"projector": self.projector, "projector_optimizer": self.optimizer}

    def fused(self, view: View, modality: Modality, rows: Tensor, encode: Callable[[Any], Represent] = plain) -> Tensor:
        """R̃ = P([G_ex(x); F_ex(x)]) [B, d2], shared part first."""
        both = [encode(model)(view, modality, rows) for model in (self.small, self.me.model)]
        return self.projector(torch.cat(both, dim=1))

    def coarse(self, z: Tensor) -> Tensor:
        """y_G [B, C] of the nested first d1 numbers; under MRL-E by the own head's first d1 columns."""
        if self.params.shares_head:
            return head_of(self.small)(z[:, : self.d1])
        own = head_of(self.me.model)
        return own.scale * F.linear(z[:, : self.d1], own.linear.weight[:, : self.d1], own.linear.bias)

    def loss(self, rows: Tensor) -> Tensor:
        """m_G·CE(y_G, y) + m_F·CE(y_F, y) on private rows."""
        me = self.me
        z, y = self.fused(me.train, self.modality, rows), me.train.targets(rows)
        coarse, fine = self.coarse(z), head_of(me.model)(z)
        return self.params.m_global * F.cross_entropy(coarse, y) + self.params.m_local * F.cross_entropy(fine, y)

    def evaluate(self) -> dict[str, float]:
        """Tests of mix-large (headline) and, as controls, of mix-small, single-small and single-large.

        The single ones feed a head with raw representations, which it was never trained on.
        """
        me, models = self.me, (self.small, self.me.model)
        if not len(me.test):
            return {}
        encoded = {model: representations(model, me.test, self.modality, plain(model)) for model in models}

        def encode(model: Any) -> Represent:  # each test row is encoded once, whoever reads it
            return lambda view, modality, rows: encoded[model][rows].to(me.device)

        self.small.eval()
        fused = partial(self.fused, encode=encode)
        metrics = evaluate(me, fused)
        others: dict[str, tuple[Represent, Callable[[Tensor], Tensor]]] = {
            "mix_small": (fused, self.coarse),
            "single_large": (encode(me.model), head_of(me.model)),
        }
        if self.params.shares_head:
            others["single_small"] = (encode(self.small), head_of(self.small))
        for name, (represent, head) in others.items():
            metrics |= control(me, name, represent, head)
        return metrics
