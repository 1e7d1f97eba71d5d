"""FedHeNN, client half: learn the own task while the representations keep the geometry that all have on average.

Paper: Makhija et al., ICML 2022, arXiv 2202.07757. The loss is the task's + η_t (1 - CKA(K̄, K_n)) with
η_t = η_0 √t in round t. K_n [l, l] are centred Gram matrices of l public samples, which need no labels (the authors'
code takes labelled training data), encoded in eval mode: so K_n is the same when it is sent and when it is learned
from, and BatchNorm's running statistics stay those of the own data. A step on a private batch uses all l samples.
"""

from __future__ import annotations

import math

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from clients import local
from clients.base import Means, evaluate, local_epochs, task_loss
from fedapps.learner import step
from fedapps.losses.cka import centred_gram, cka
from fedapps.methods import FedHeNNParams
from fedapps.participant import Participant

app = ClientApp()
app.evaluate()(local.test)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Local epochs on the task and, from the second round on, CKA; then K_n of the next round's samples."""
    me = Participant(msg, context)
    me.restore()
    metrics = learn(me) if me.received("target") else local_epochs(me)
    me.keep()
    with torch.no_grad():
        K = gram(me, me.received("next")["rows"])
    return me.reply({"gram": {"K": K}}, metrics, evaluate=lambda: evaluate(me))


def learn(me: Participant) -> dict[str, float]:
    """Local epochs with K̄ as it came."""
    assert isinstance(me.settings.params, FedHeNNParams)
    eta = me.settings.params.eta * math.sqrt(me.round)
    target, aligned = me.received("target")["K"].to(me.device), me.received("rows")["rows"]
    means = Means()
    for _ in range(me.settings.local_epochs):
        for rows in me.batches():
            me.model.train()
            task = task_loss(me, rows)
            distance = 1 - cka(target, gram(me, aligned))
            step(task + eta * distance, [me.optimizer], me.spec.train.clip)
            means.add(task_loss=task, cka_distance=distance)
    return means.result()


def gram(me: Participant, rows: Tensor) -> Tensor:
    """K_n [l, l] of public rows; leaves the model in eval mode."""
    me.model.eval()
    modality = me.spec.modalities[0]
    return centred_gram(me.model.represent(modality, me.public.input(me.model, modality, rows)))
