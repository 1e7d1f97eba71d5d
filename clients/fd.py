"""FD, client half: the own task, and the others' mean output for the label of each sample.

Paper: Jeong et al., 2018, arXiv 1811.11479. The loss is CE(F(x), y) + λ·CE(F(x), F̂[y]), F the softmax output. Local
means F̄ are of outputs in training passes, as in the paper; here of those of the last local epoch, which has seen every
sample once and is the nearest to the model that is kept.

Both F̄ and F̂ are probabilities. A released re-implementation takes raw logits as targets: its loss has no lower bound,
and it diverges.
"""

from __future__ import annotations

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor
from torch.nn import functional as F

from clients.base import Means, class_means, evaluate
from fedapps import learner
from fedapps.learner import plain, step
from fedapps.methods import FDParams
from fedapps.participant import Participant

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Local epochs on CE + λ·CE(·, F̂), then F̄ and the counts of the labels."""
    me = Participant(msg, context)
    me.restore()
    assert isinstance(me.settings.params, FDParams)
    weight = me.settings.params.weight
    targets = targets_of(me)
    means = Means()
    me.model.train()
    for _ in range(me.settings.local_epochs):
        outputs, labels = [], []  # of this epoch
        for rows in me.batches():
            logits, y = learner.forward(me.spec, me.model, me.train, rows, plain(me.model)), me.train.targets(rows)
            task, distillation = me.task.loss(logits, y, me.model.head), distillation_loss(logits, targets[y])
            step(task + weight * distillation, [me.optimizer], me.spec.train.clip)
            means.add(task_loss=task, distillation_loss=distillation)
            outputs.append(logits.detach().softmax(dim=1).cpu())
            labels.append(y.cpu())
    me.keep()
    sent = class_means(torch.cat(outputs), torch.cat(labels), len(targets))
    return me.reply({"outputs": sent}, means.result(), evaluate=lambda: evaluate(me))


@app.evaluate()
def test(msg: Message, context: Context) -> Message:
    """The test alone: inference needs nothing of the others."""
    me = Participant(msg, context)
    me.restore()
    return me.reply(evaluate=lambda: evaluate(me))


def targets_of(me: Participant) -> Tensor:
    """F̂ [C, C] as it came; zeros where nobody has sent anything yet."""
    classes = me.held.num_classes(me.name)
    return me.received("targets").get("means", torch.zeros(classes, classes)).to(me.device)


def distillation_loss(logits: Tensor, target: Tensor) -> Tensor:
    """-Σ_c F̂[y]_c log F(x)_c, mean over the batch, of ``logits`` and ``target`` [B, C].

    A label that nobody else holds has a target of zeros, and so no term.
    """
    return F.cross_entropy(logits, target.detach())
