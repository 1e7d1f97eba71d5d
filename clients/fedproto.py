"""FedProto, client half: representations are drawn to the global prototype of their class.

Paper: Tan et al., AAAI 2022, arXiv 2105.00243. f the encoder, g the head: the loss is CE(g(f(x)), y) +
λ·MSE(f(x), C̄[y]). The distance is that of the code: squared, a mean over the d numbers, for each sample instead of for
the mean of its class. So λ weighs less the larger d is, and where the scenario scales representations to unit length
(``unit``) the term is at most 4λ/d.
"""

from __future__ import annotations

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from clients.base import Means, class_means, control, evaluate
from fedapps.learner import plain, representations, step
from fedapps.methods import FedProtoParams
from fedapps.models import head_of
from fedapps.participant import Participant

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Local epochs on CE + λ·MSE, then the own prototypes: in eval mode, of all training samples.

    The test follows in a phase of its own, as its prototypes are those that the server makes of this round's.
    """
    me = Participant(msg, context)
    me.restore()
    proto = FedProto(me)
    means = Means()
    me.model.train()
    for _ in range(me.settings.local_epochs):
        for rows in me.batches():
            task, pull = proto.losses(rows)
            step(task + proto.weight * pull, [me.optimizer], me.spec.train.clip)
            means.add(task_loss=task, prototype_loss=pull)
    me.keep()
    return me.reply({"prototypes": proto.own()}, means.result())


@app.evaluate()
def test(msg: Message, context: Context) -> Message:
    """The tests of the head and of the nearest global prototype."""
    me = Participant(msg, context)
    me.restore()
    return me.reply(evaluate=FedProto(me).evaluate)


class FedProto:
    """A participant's model with the global prototypes C̄ (``means`` [C, d]) as they came.

    ``known`` [C] is 1 for a class that has a prototype, else 0.
    """

    def __init__(self, me: Participant) -> None:
        self.me = me
        assert isinstance(me.settings.params, FedProtoParams)
        self.weight = me.settings.params.weight  # λ
        self.modality = me.spec.modalities[0]
        self.means, self.known = (me.received("prototypes")[name].to(me.device) for name in ("means", "known"))

    def losses(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """CE(g(f(x)), y) and MSE(f(x), C̄[y]), means over the batch; without C̄[y] a sample adds 0 to the latter."""
        me = self.me
        z, y = plain(me.model)(me.train, self.modality, rows), me.train.targets(rows)
        distance = (z - self.means[y]).square().mean(dim=1)
        return me.task.loss(head_of(me.model)(z), y, me.model.head), (self.known[y] * distance).mean()

    def own(self) -> dict[str, Tensor]:
        """C_i [C, d], the mean representation of each class, and the number of its samples [C]."""
        me = self.me
        z = representations(me.model, me.train, self.modality, plain(me.model))
        return class_means(z, me.train.targets(torch.arange(len(me.train))).cpu(), len(self.known))

    def nearest(self, z: Tensor) -> Tensor:
        """-‖z - C̄[j]‖ [B, C], whose largest is the class; -∞ for classes without a prototype."""
        distance = torch.cdist(z, self.means, compute_mode="donot_use_mm_for_euclid_dist")
        return (-distance).masked_fill(self.known == 0, -torch.inf)

    def evaluate(self) -> dict[str, float]:
        """The head (headline, as in every other method) and, as a control, the paper's nearest prototype.

        All classes with a prototype compete, not only those that this participant has seen: the authors' code leaves
        the others out, which tells the test which labels to expect.
        """
        metrics = evaluate(self.me)
        if self.known.any():
            metrics |= control(self.me, "prototype", plain(self.me.model), self.nearest)
        return metrics
