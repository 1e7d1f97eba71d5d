"""FedMuscle, client half: learn the own task, then hold the own public representations against those of others.

Paper: ICLR 2026, arXiv 2602.01626. Of participant n: w^n the representation model (encoder and projection to d), and
its task's head. The local phase moves both, the contrastive phase moves w^n alone, with an optimiser of its own and in
eval mode, so that a representation is the same when it is sent and when it is learned from.
"""

from __future__ import annotations

import math

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from clients import local
from clients.base import Means, evaluate, local_epochs, public_view
from fedapps.learner import step, trainable
from fedapps.losses import alignment, muscle_loss_from_tuples
from fedapps.methods import FedMuscleParams
from fedapps.participant import Participant
from fedapps.seeds import generator

app = ClientApp()
app.evaluate()(local.test)  # the own model needs nothing of the others


@app.train("represent")
def represent(msg: Message, context: Context) -> Message:
    """z^n of the first exchange of a round."""
    me = Participant(msg, context)
    return me.reply({"public": FedMuscle(me).represent()})


@app.train("align")
def align(msg: Message, context: Context) -> Message:
    """The contrastive steps of one exchange, then z^n of the next."""
    me = Participant(msg, context)
    muscle = FedMuscle(me)
    metrics = muscle.contrast()
    muscle.keep()
    return me.reply({"public": muscle.represent()}, metrics)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """The contrastive steps of the last exchange, if there was one, then the local phase and its test."""
    me = Participant(msg, context)
    muscle = FedMuscle(me)
    metrics = muscle.contrast() | local_epochs(me)
    muscle.keep()
    return me.reply(metrics=metrics, evaluate=lambda: evaluate(me))


class FedMuscle:
    """A participant's side of the contrast."""

    def __init__(self, me: Participant) -> None:
        self.me = me
        assert isinstance(me.settings.params, FedMuscleParams)
        self.params = me.settings.params
        self.B = self.params.sizes(len(me.public))["B"]
        self.modality = me.spec.modalities[0]
        self.temperature = nn.ParameterDict({"log_scale": torch.zeros(())})  # of τ^(N); moves under learn-tau only
        learned = list(self.temperature.parameters()) if self.params.learn_tau else []
        rate = self.params.learning_rate
        self.optimizer = torch.optim.AdamW([*trainable(me.model.encoders), *learned], lr=rate)
        me.restore(contrastive=self.optimizer, temperature=self.temperature)

    def keep(self) -> None:
        self.me.keep(contrastive=self.optimizer, temperature=self.temperature)

    def z(self, rows: Tensor) -> Tensor:
        """Unit representations [B, d] of public rows, of the same view whenever the same step is asked for."""
        me = self.me
        if self.params.views:
            rng = generator(me.settings.seed, me.round, me.name, "view", rows.tolist())
            x = public_view(me, rows, self.params.views, rng)
        else:
            x = me.public.input(me.model, self.modality, rows)
        return nn.functional.normalize(me.model.represent(self.modality, x))

    @torch.no_grad()
    def represent(self) -> dict[str, Tensor]:
        """z^n [K, d] of the rows that the server names."""
        self.me.model.eval()
        rows = self.me.received("next")["rows"]
        return {"rows": rows, "z": torch.cat([self.z(batch).cpu() for batch in rows.split(self.B)])}

    def contrast(self) -> dict[str, float]:
        """A step of L_CL for each B rows; without others there is nothing to learn from."""
        me, means = self.me, Means()
        come = {record: me.received(record) for record in ("others", "gradient", "tuples")}
        me.model.eval()
        for number, rows in enumerate(me.received("rows")["rows"].split(self.B) if any(come.values()) else []):
            loss, value, M = self.loss(self.z(rows), come, number)
            step(loss, [self.optimizer], me.spec.train.clip)
            bound = {"tc_bound": M * math.log(self.B) - value} if self.params.loss == "muscle" else {}
            means.add(contrastive_loss=value, **bound)
        return means.result()

    def loss(self, z: Tensor, come: dict[str, dict[str, Tensor]], number: int) -> tuple[Tensor, Tensor, int]:
        """L_CL of one step to learn from, its value, and M; from whichever of the three messages came."""
        params = self.params
        if gradient := come["gradient"]:
            return (z * gradient["z"].to(z.device)).sum(), gradient["loss"], int(gradient["others"])
        if tuples := come["tuples"]:
            M = int(next(iter(tuples)).rpartition("-")[2])
            S, log_alpha = (tuples[f"{what}-{M}"].split(self.B**M)[number] for what in ("S", "log-alpha"))
            loss = muscle_loss_from_tuples(z, S.to(z.device), log_alpha.to(z.device))
            return loss, loss.detach(), M
        others = [other.split(self.B)[number].to(z.device) for other in come["others"].values()]
        scaled = z * self.temperature["log_scale"].exp().to(z.device)
        loss = alignment(params.loss, scaled, others, params.tau, params.tau_prev)
        return loss, loss.detach(), len(others)
