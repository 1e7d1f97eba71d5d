"""FedProx, client half: local epochs that are held near the averaged model.

Paper: Li et al., MLSys 2020, arXiv 1812.06127. The loss is L(w) + µ/2 ‖w - w_t‖², where w_t is what came.
"""

from __future__ import annotations

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from clients import fedavg
from clients.base import Means, task_loss
from fedapps.learner import set_rate, step, trainable
from fedapps.methods import FedProxParams
from fedapps.participant import Participant

app = ClientApp()
app.evaluate()(fedavg.test)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """w_k ← w - η∇(L + µ/2 ‖w - w_t‖²) over ``local-epochs``; tested once it is averaged."""
    me = Participant(msg, context)
    assert isinstance(me.settings.params, FedProxParams)
    params = me.settings.params
    me.model.load_state_dict(me.received("model"))
    set_rate(me.optimizer, me.spec.train, me.round, me.settings.num_server_rounds)
    w_t = [w.detach().clone() for w in trainable(me.model)]
    means = Means()
    me.model.train()
    for _ in range(me.settings.local_epochs):
        for rows in me.batches():
            loss = task_loss(me, rows)
            step(loss + params.mu / 2 * distance(me.model, w_t, params.norm), [me.optimizer], me.spec.train.clip)
            means.add(task_loss=loss)
    return me.reply({"model": me.model.state_dict()}, means.result())


def distance(model: nn.Module, w_t: list[Tensor], norm: str) -> Tensor:
    """Σ ‖w - w_t‖² over the tensors; not squared under ``l2`` (gradient 0 where they are equal)."""
    differences = [w - old for w, old in zip(trainable(model), w_t, strict=True)]
    if norm == "l2":
        return torch.stack([difference.norm() for difference in differences]).sum()
    return torch.stack([difference.square().sum() for difference in differences]).sum()
