"""SAGE, client half: FixMatch on public data with a local and a global teacher.

Paper: Liu et al., CVPR 2025, arXiv 2503.13227. Of a public sample, p_l is what the own model makes of a weak view, p_g
what the global teacher says. With δ = |max p_l - max p_g| and λ = exp(-κδ), the target is λ·onehot_l + (1-λ)·onehot_g
where max p_l reaches the confidence, else onehot_g; a strong view is held against it where either teacher reaches the
confidence. The loss is Lx + Lu.

Differences: p_g is the mean of the other participants with the same labels, of plain samples, as they sent it (see the
server half); p_l is taken in eval mode, like p_g; a step has as many public samples as private ones, and a round as
many steps as private batches (the code: as the unlabelled data have); a strong view is a random view of a random view,
where the code has RandAugment. Of several labels a sample (multilabel, not in the paper) each is a distribution of two
outcomes of its own, absent and present.
"""

from __future__ import annotations

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor
from torch.nn import functional as F

from clients import local
from clients.base import Means, evaluate, local_epochs, probabilities, public_probabilities, public_view, task_loss
from fedapps import learner
from fedapps.learner import View, step
from fedapps.methods import SAGEParams
from fedapps.participant import Participant
from fedapps.scenario import Modality

app = ClientApp()
app.train("alone")(local.train)  # of those whose labels nobody else has
app.evaluate()(local.test)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Local epochs on Lx + Lu, or on Lx until there is a global teacher; then the own probabilities."""
    me = Participant(msg, context)
    me.restore()
    metrics = learn(me) if me.received("teacher") else local_epochs(me)
    me.keep()
    return me.reply({"public": {"p": public_probabilities(me)}}, metrics, evaluate=lambda: evaluate(me))


def learn(me: Participant) -> dict[str, float]:
    """Local epochs with p_g as it came."""
    assert isinstance(me.settings.params, SAGEParams)
    params, task = me.settings.params, me.spec.task.name
    teacher = me.received("teacher")["p"].to(me.device)
    means = Means()
    for _ in range(me.settings.local_epochs):
        for rows in me.batches():
            public = torch.randperm(len(me.public), generator=me.rng)[: len(rows)]
            me.model.eval()
            with torch.no_grad():
                own = probabilities(me, logits(me, public, views=1))
            target, counts = targets(outcomes(own, task), outcomes(teacher[public], task), params)
            me.model.train()
            Lx, Lu = task_loss(me, rows), unlabelled_loss(logits(me, public, views=2), target, counts)
            step(Lx + Lu, [me.optimizer], me.spec.train.clip)
            means.add(task_loss=Lx, unlabelled_loss=Lu, confident=counts.float().mean())
    return means.result()


def logits(me: Participant, rows: Tensor, views: int) -> Tensor:
    """[B, C] of random views of public rows: 1 is a weak view, 2 (one of another) a strong one."""
    assert isinstance(me.settings.params, SAGEParams)
    count = me.settings.params.views

    def represent(view: View, modality: Modality, rows: Tensor) -> Tensor:
        return me.model.represent(modality, public_view(me, rows, count, me.rng, views))

    return learner.forward(me.spec, me.model, me.public, rows, represent)


def outcomes(p: Tensor, task: str) -> Tensor:
    """Probabilities ``p`` [B, C] as distributions along the last axis: [B, C] or, of each label, [B, C, 2]."""
    return torch.stack([1 - p, p], dim=-1) if task == "multilabel" else p


def targets(own: Tensor, teacher: Tensor, params: SAGEParams) -> tuple[Tensor, Tensor]:
    """Targets [..., C] of the distributions p_l and p_g [..., C], and where they count, bool [...]."""
    (max_l, label_l), (max_g, label_g) = own.max(dim=-1), teacher.max(dim=-1)
    onehot_l, onehot_g = (F.one_hot(label, own.shape[-1]).to(own.dtype) for label in (label_l, label_g))
    sure_l, sure_g = max_l >= params.confidence, max_g >= params.confidence
    share = torch.exp(-params.kappa * (max_l - max_g).abs()) * sure_l  # λ; 0 where the own model is not sure
    return torch.lerp(onehot_g, onehot_l, share.unsqueeze(-1)), sure_l | sure_g


def unlabelled_loss(logits: Tensor, target: Tensor, counts: Tensor) -> Tensor:
    """KL(target ‖ strong view), 0 where it does not count; mean over samples, and over labels where there are several.

    ``target`` is [B, C], or [B, C, 2] of each label.
    """
    several = target.ndim > logits.ndim
    outputs = torch.stack([F.logsigmoid(-logits), F.logsigmoid(logits)], -1) if several else logits.log_softmax(-1)
    return (F.kl_div(outputs, target, reduction="none").sum(dim=-1) * counts).mean()
