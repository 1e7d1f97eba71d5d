"""SimCLR, client half: two views of the same public sample belong together.

Paper: Chen et al., ICML 2020, arXiv 2002.05709. As in FedMuscle, local phases take turns with contrastive ones, local
first, and only the representation model w^n moves in the latter; the loss is NT-Xent over 2B views.
"""

from __future__ import annotations

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor
from torch.nn import functional as F

from clients import local
from clients.base import Means, evaluate, local_epochs, public_view
from fedapps.learner import step, trainable
from fedapps.losses import nt_xent
from fedapps.methods import SimCLRParams
from fedapps.participant import Participant

app = ClientApp()
app.evaluate()(local.test)  # the own model needs nothing of the others


@app.train()
def train(msg: Message, context: Context) -> Message:
    """From the second round on the contrastive phase, then the local one and its test."""
    me = Participant(msg, context)
    assert isinstance(me.settings.params, SimCLRParams)
    optimizer = torch.optim.AdamW(trainable(me.model.encoders), lr=me.settings.params.learning_rate)
    me.restore(contrastive=optimizer)
    metrics = contrast(me, me.settings.params, optimizer) if me.round > 1 else {}
    metrics |= local_epochs(me)
    me.keep(contrastive=optimizer)
    return me.reply(metrics=metrics, evaluate=lambda: evaluate(me))


def contrast(me: Participant, params: SimCLRParams, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """T epochs of NT-Xent on public data, whole batches of B."""
    means = Means()
    me.model.eval()

    def z(rows: Tensor) -> Tensor:
        return F.normalize(me.model.represent(me.spec.modalities[0], public_view(me, rows, params.views, me.rng)))

    B = params.sizes(len(me.public))["B"]
    for _ in range(params.epochs):
        for rows in torch.randperm(len(me.public), generator=me.rng).split(B):
            if len(rows) == B:
                loss = nt_xent(z(rows), z(rows), params.tau)
                step(loss, [optimizer], me.spec.train.clip)
                means.add(contrastive_loss=loss)
    return means.result()
