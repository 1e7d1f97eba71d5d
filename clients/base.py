"""Small helpers that several client halves share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fedapps import learner
from fedapps.data.views import one_of
from fedapps.learner import Represent, plain
from fedapps.participant import Participant


def task_loss(me: Participant, rows: Tensor, represent: Represent | None = None) -> Tensor:
    """The participant's own task loss on some of its private rows."""
    output = learner.forward(me.spec, me.model, me.train, rows, represent or plain(me.model))
    return learner.task_loss(me.spec, me.model, me.task, me.train, rows, output)


def local_epochs(me: Participant) -> dict[str, float]:
    """``local-epochs`` of the task's loss on private data; its mean."""
    means = Means()
    me.model.train()
    for _ in range(me.settings.local_epochs):
        for rows in me.batches():
            loss = task_loss(me, rows)
            learner.step(loss, [me.optimizer], me.spec.train.clip)
            means.add(task_loss=loss)
    return means.result()


def evaluate(
    me: Participant, represent: Represent | None = None, head: Callable[[Tensor], Tensor] | None = None
) -> dict[str, float]:
    """Test metrics of the participant's model on its held-out rows; of other representations or another head."""
    known = {} if me.class_mix is None else {"mix": me.class_mix}
    return learner.score(me.spec, me.model, me.task, me.test, represent, head, **known)


def control(me: Participant, name: str, represent: Represent, head: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """``<name>_accuracy`` of another way to use the participant's models; nothing where it has no test data."""
    metrics = evaluate(me, represent, head)
    return {f"{name}_accuracy": metrics["accuracy"]} if metrics else {}


def probabilities(me: Participant, logits: Tensor) -> Tensor:
    """[B, C] of classes, or of each label where a sample has several."""
    return logits.sigmoid() if me.spec.task.name == "multilabel" else logits.softmax(dim=1)


@torch.no_grad()
def public_probabilities(me: Participant) -> Tensor:
    """What the model makes of all public samples as they are [P, C], on the CPU; leaves it in eval mode."""
    me.model.eval()
    chunks = torch.arange(len(me.public)).split(256)
    logits = [learner.forward(me.spec, me.model, me.public, rows, plain(me.model)).cpu() for rows in chunks]
    return probabilities(me, torch.cat(logits))


def public_view(me: Participant, rows: Tensor, count: int, rng: torch.Generator, times: int = 1) -> Tensor:
    """One of ``count`` random views of public rows, as the model takes them; with ``times`` 2 a view of a view."""
    modality = me.spec.modalities[0]
    x = me.public.input(me.model, modality, rows)
    return one_of(count, x, rows, rng, me.settings.seed, times, getattr(me.model.encoders[modality], "pad", 0))


def class_means(rows: Tensor, y: Tensor, classes: int) -> dict[str, Tensor]:
    """Means [C, k] by class of ``rows`` [N, k] with classes ``y`` [N], and counts [C]; 0 for an absent class."""
    counts = torch.bincount(y, minlength=classes).double()
    sums = torch.zeros(classes, rows.shape[1], dtype=torch.float64).index_add_(0, y, rows.double())
    return {"means": (sums / counts.clamp(min=1).unsqueeze(1)).float(), "counts": counts.float()}


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(p_teacher ‖ p_student) of logits [B, C], mean over samples; moves the student only."""
    return F.kl_div(student.log_softmax(1), teacher.detach().softmax(1), reduction="batchmean")


class Means:
    """Running means of losses, one number each."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, int]] = {}

    def add(self, **losses: Tensor) -> None:
        for name, loss in losses.items():
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = total + loss.item(), count + 1

    def result(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in self.sums.items()}
