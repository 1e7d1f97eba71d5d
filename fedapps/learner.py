"""A party as something that learns: its model, task and optimiser, and its samples as the model takes them.

Server and participants are built by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import timm.optim
import torch
from torch import Tensor, nn

from fedapps.data import Lazy, Samples
from fedapps.data import gallery as distinct
from fedapps.errors import UserError
from fedapps.models import Encoder, LogitHead, Model, build_encoder
from fedapps.scenario import Data, Modality, Party, Scenario, Train
from fedapps.seeds import seed_of
from fedapps.tasks import Task, build_task

Represent = Callable[["View", Modality, Tensor], Tensor]
"""(view, modality, rows) -> representations [len(rows), d]."""


def build_learner(party: Party, dim: int, classes: int, *seed: object) -> tuple[Model, Task]:
    """The model and the task of a party, initialised by the names in ``seed``; ``classes`` of its label column."""
    torch.manual_seed(seed_of("init", *seed))
    encoders = build_encoders(party, dim)
    options: dict[str, Any] = dict(party.task.options)
    if party.task.name != "retrieval":
        options["num_classes"] = classes
    task = build_task(party.task.name, **options)
    head = task.head(encoders)
    if isinstance(head, LogitHead) and not party.unit:
        head.scale = 1.0
    return Model(encoders, head, party.unit), task


def build_shared(scenario: Scenario, modality: Modality, dim: int, classes: int, seed: int) -> Model:
    """The model that participants of one modality and label set share, with representations [B, dim]."""
    if modality not in scenario.shared:
        raise UserError(f"scenario {scenario.name}: shared: names no {modality} model for participants to share")
    spec = scenario.shared[modality]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of("init", seed, "shared"))
        encoder = build_encoder(modality, spec.name, dim, **spec.options)
        return Model({modality: encoder}, LogitHead(dim, classes, scale=1.0), unit=False)


def build_encoders(party: Party, dim: int, modalities: tuple[Modality, ...] | None = None) -> dict[str, Encoder]:
    """The encoders of a party by modality (default: of all that it has)."""
    chosen = {m: party.model[m] for m in modalities or party.modalities}
    return {m: build_encoder(m, spec.name, dim, **spec.options) for m, spec in chosen.items()}


def build_optimizer(train: Train, parameters: Any) -> torch.optim.Optimizer:
    """The optimiser that a ``train`` block names, of those of the parameters that learn."""
    rate, decay = train.learning_rate, train.weight_decay
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    match train.optimizer:
        case "adam":
            return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
        case "adamw":
            return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)
        case "adamp":
            return timm.optim.AdamP(parameters, lr=rate, weight_decay=decay)
        case "sgd":
            return torch.optim.SGD(parameters, lr=rate, momentum=train.momentum, weight_decay=decay)


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that learn; those of a frozen backbone do not."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def set_rate(optimizer: torch.optim.Optimizer, train: Train, server_round: int, num_rounds: int) -> None:
    """Set the learning rate of a round: cosine over the rounds, a tenth from each milestone on, ``decay`` a round."""
    rate = train.learning_rate * 0.1 ** sum(server_round >= m for m in train.milestones)
    rate *= train.decay ** max(server_round - 1, 0)
    if train.schedule == "cosine":
        rate *= 0.5 * (1 + np.cos(np.pi * max(server_round - 1, 0) / num_rounds))
    for group in optimizer.param_groups:
        group["lr"] = float(rate)


def step(loss: Tensor, optimizers: list[torch.optim.Optimizer], clip: float | None = None) -> None:
    """One backward pass and one step of each optimiser; ``clip`` is the largest gradient norm of each for itself."""
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    for optimizer in optimizers:
        if clip is not None:
            nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], clip)
        optimizer.step()


# --------------------------------------------------------------------------------------------------- views


@dataclass(frozen=True)
class View:
    """Samples as models take them.

    ``inputs`` names for each modality the column that models read; ``target`` is the task's label of each row,
    or, for retrieval, the id that matching rows share. ``gallery`` gives for each modality the rows of distinct
    pictures or captions that retrieval ranks.
    """

    samples: Samples
    inputs: Mapping[Modality, str]
    target: Any
    gallery: Mapping[Modality, Tensor]
    device: torch.device

    def __len__(self) -> int:
        return len(self.samples)

    def input(self, model: Model, modality: Modality, rows: Tensor) -> Tensor:
        """uint8 [B,3,H,W], or token ids [B,L] of the model's own tokeniser."""
        column: Any = self.samples[self.inputs[modality]]
        if modality == "text":
            column = _tokens(self.samples, self.inputs[modality], model.encoders["text"])
        return column[rows].to(self.device)

    def targets(self, rows: Tensor) -> Tensor:
        return self.target[rows].to(self.device)


def view(samples: Samples, party: Party, data: Data, device: torch.device, labelled: bool = True) -> View:
    """``samples`` as a party takes them, with the target of its task.

    Without labels (public data) the target of a row is its number.
    """
    inputs: dict[Modality, str] = {m: data.text if m == "text" else "image" for m in party.modalities}
    for modality, column in inputs.items():
        if column not in samples or (modality == "text" and not _is_text(samples[column])):
            raise UserError(f"data {data.name}: there is no {modality} column '{column}'")
    if not labelled:
        return View(samples, inputs, torch.arange(len(samples)), {}, device)
    retrieval = party.task.name == "retrieval"
    label = "concept" if retrieval else data.label
    if label is None:
        raise UserError(f"data.label: must name the label column of {data.name} for task {party.task.name}")
    if label not in samples:
        raise UserError(f"data {data.name}: there is no column '{label}' for task {party.task.name}")
    target = samples[label]
    _check_label(samples, label, party.task.name)
    gallery: dict[Modality, Tensor] = {}
    if retrieval:
        pictures, captions = distinct(samples, np.arange(len(samples)))
        gallery = {"image": torch.from_numpy(pictures), "text": torch.from_numpy(captions)}
    return View(samples, inputs, torch.as_tensor(target) if isinstance(target, np.ndarray) else target, gallery, device)


def _is_text(column: Any) -> bool:
    return isinstance(column, list) and all(isinstance(value, str) for value in column[:1])


def _check_label(samples: Samples, label: str, task: str) -> None:
    """Refuse a label column that is not of the kind that a task learns."""
    column = samples[label]
    found = "one class a row" if isinstance(column, np.ndarray) and label in samples.classes else "no label"
    if isinstance(column, torch.Tensor) and column.ndim == 2:
        found = "several labels a row"
    if isinstance(column, Lazy) and label in samples.classes:
        found = "a class a pixel"
    wanted = {
        "classification": "one class a row",
        "multilabel": "several labels a row",
        "segmentation": "a class a pixel",
    }.get(task, found)
    if found != wanted:
        raise UserError(f"data.label: '{label}' is {found}; {task} takes {wanted}")


_TOKENS: WeakKeyDictionary[Samples, dict[tuple[str, str], Tensor]] = WeakKeyDictionary()


def _tokens(samples: Samples, column: str, encoder: Any) -> Tensor:
    """Token ids [N, L] of a text column, made once per process for encoders that are made from the same."""
    known = _TOKENS.setdefault(samples, {})
    key = (column, encoder.made_from)
    if key not in known:
        known[key] = encoder.tokenize(samples[column])
    return known[key]


# ------------------------------------------------------------------------------------- forward and scores


def plain(model: Model) -> Represent:
    """The model's own representations, unit rows."""
    return lambda view, modality, rows: model.represent(modality, view.input(model, modality, rows))


def forward(party: Party, model: Model, view: View, rows: Tensor, represent: Represent, head: Any = None) -> Any:
    """What the party's task takes: logits of ``rows``, or the pair of representations for retrieval.

    ``head`` is the model's own unless another is given.
    """
    if party.task.name == "retrieval":
        return represent(view, "image", rows), represent(view, "text", rows)
    modality = party.modalities[0]
    head = head or model.head
    if party.task.name == "segmentation":
        encoder: Any = model.encoders[modality]
        pictures = view.input(model, modality, rows)
        return head(encoder.maps(pictures), pictures.shape[-2:])
    return head(represent(view, modality, rows))


def task_loss(party: Party, model: Model, task: Task, view: View, rows: Tensor, output: Any) -> Tensor:
    """The task's loss of an ``output`` that ``forward`` gave for ``rows``."""
    target = view.targets(rows)
    return task.loss(output, (target, target) if party.task.name == "retrieval" else target, model.head)


@torch.no_grad()
def representations(model: nn.Module, view: View, modality: Modality, represent: Represent, size: int = 256) -> Tensor:
    """All rows in eval mode, [N, d], on the CPU; the module's mode is put back."""
    mode = model.training
    model.eval()
    parts = [represent(view, modality, rows).cpu() for rows in torch.arange(len(view)).split(size)]
    model.train(mode)
    return torch.cat(parts)


@torch.no_grad()
def score(
    party: Party,
    model: Model,
    task: Task,
    view: View,
    represent: Represent | None = None,
    head: Any = None,
    **known: Any,
) -> dict[str, float]:
    """Test metrics of a model in eval mode on all of ``view``; none of an empty one."""
    if not len(view):
        return {}
    represent = represent or plain(model)
    mode = model.training
    model.eval()
    if party.task.name == "retrieval":
        pictures, captions = view.gallery["image"], view.gallery["text"]
        output: Any = tuple(
            torch.cat([represent(view, modality, part).cpu() for part in rows.split(256)])
            for modality, rows in (("image", pictures), ("text", captions))
        )
        target: Any = (view.target[pictures], view.target[captions])
    else:
        chunks = torch.arange(len(view)).split(256)
        output = torch.cat([forward(party, model, view, rows, represent, head).cpu() for rows in chunks])
        target = view.target[torch.arange(len(view))]
    model.train(mode)
    return task.score(output, target, **known)
