"""CoFED, client half: learn from private data and from the public samples that got one of the own classes.

Paper: Cao et al., 2022, arXiv 2202.08603. A pseudo-label is given where the largest probability exceeds the second by
more than ``cofed.margin``, 0.3 in the authors' code; of several labels a sample (not in the paper) where present and
absent are that far apart, |2p - 1|. As there, classes weigh in inverse proportion to their samples, private and public
ones together.

Differences: the paper trains to the end, exchanges once and trains again. Here each round is an exchange, and its
local epochs learn from the pseudo-labels of the round before. Private and public samples stand in batches of their
own, in random order, as they need not be of one size.
"""

from __future__ import annotations

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor
from torch.nn import functional as F

from clients import local
from clients.base import Means, evaluate, local_epochs, public_probabilities
from fedapps import learner
from fedapps.learner import plain, step
from fedapps.methods import CoFEDParams
from fedapps.participant import Participant

app = ClientApp()
app.train("alone")(local.train)  # of those whose labels nobody else has
app.evaluate()(local.test)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Local epochs with the pseudo-labelled public samples that came, then the own pseudo-labels of all."""
    me = Participant(msg, context)
    assert isinstance(me.settings.params, CoFEDParams)
    me.restore()
    metrics = learn(me)
    me.keep()
    labels = pseudo_labels(public_probabilities(me), me.spec.task.name, me.settings.params.margin)
    records = {"votes": {"labels": labels}, "owned": {"classes": owned(me)}}
    return me.reply(records, metrics, evaluate=lambda: evaluate(me))


def learn(me: Participant) -> dict[str, float]:
    """Local epochs on private data and on the public samples that came with a label; fewer than two are none."""
    labels = me.received("targets").get("labels", torch.full((len(me.public),), -1))
    rows = torch.nonzero(labels.reshape(len(labels), -1).amax(dim=1) >= 0).flatten()
    if len(rows) < 2:
        return {**local_epochs(me), "pseudo_labelled": 0}
    weights = class_weights(me, labels)
    means = Means()
    me.model.train()
    for _ in range(me.settings.local_epochs):
        batches = [(me.train, part, me.train.targets(part)) for part in me.batches()]
        batches += [(me.public, rows[part], labels[rows[part]].to(me.device)) for part in me.batches(rows)]
        for number in torch.randperm(len(batches), generator=me.rng).tolist():
            view, part, y = batches[number]
            loss = loss_of(learner.forward(me.spec, me.model, view, part, plain(me.model)), y, weights)
            step(loss, [me.optimizer], me.spec.train.clip)
            means.add(**{"task_loss" if view is me.train else "pseudo_loss": loss})
    return {**means.result(), "pseudo_labelled": len(rows)}


def loss_of(logits: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
    """Cross entropy of classes ``y`` [B] with the ``weights`` of classes; binary, of the labels that are known, of
    ``y`` [B, C], where -1 is not known."""
    if y.ndim == 1:
        return F.cross_entropy(logits, y, weights)
    known = y >= 0
    return F.binary_cross_entropy_with_logits(logits[known], y[known].float())


def class_weights(me: Participant, labels: Tensor) -> Tensor | None:
    """1 / samples of each class [C], private and pseudo-labelled ones; none where samples have several labels."""
    if labels.ndim > 1:
        return None
    y = torch.cat([me.train.target, labels[labels >= 0]])
    return (1 / torch.bincount(y, minlength=me.held.num_classes(me.name)).clamp(min=1)).to(me.device)


def pseudo_labels(p: Tensor, task: str, margin: float) -> Tensor:
    """Labels of public samples by their probabilities ``p`` [P, C], int64; -1 where the model is not sure.

    The class [P]; for task multilabel 1 present or 0 absent [P, C].
    """
    if task == "multilabel":
        return torch.where((2 * p - 1).abs() > margin, (p > 0.5).long(), -1)
    first, second = p.topk(2, dim=1).values.unbind(dim=1)
    return torch.where(first - second > margin, p.argmax(dim=1), -1)


def owned(me: Participant) -> Tensor:
    """1 for each class that the training data have, else 0 [C]."""
    y = me.train.target
    counts = y.sum(dim=0) if y.ndim > 1 else torch.bincount(y, minlength=me.held.num_classes(me.name))
    return (counts > 0).float()
