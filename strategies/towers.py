"""What FedIoT and FedCola share: a model for each type of participant, whose towers are averaged across types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from fedapps.models import Model
from fedapps.models.unified import Place, places
from strategies.average import RunningMean, Tensors
from strategies.base import Content, Reply
from strategies.fedavg import FedAvg

Models = Sequence[tuple[Tensors, float]]
"""Models of one type, each with the samples n_k that it counts."""


class Towers(FedAvg):
    """One model θ_t for each type t: participants of one modality, task and label set.

    All towers of all types start from one seed, for weights that start apart have no meaningful mean. A tensor's name
    says its modality, so types have a tensor in common where it has the same name.
    """

    across = True

    def setup(self) -> None:
        self.places: dict[str, dict[str, Place]] = {}  # type -> tensor -> what it is
        super().setup()
        entries = self.scenario.by_name.items()
        self.modalities = {self.group[name]: entry.modalities for name, entry in entries}  # of each type

    def first_model(self, name: str) -> Model:
        model = super().first_model(name)
        self.places[self.group[name]] = places(model)
        return model

    def train_round(self, server_round: int) -> None:
        self.train(self.content(self.chosen))

    def train(self, each: Mapping[str, Content]) -> Mapping[str, Reply]:
        """Train and aggregate; the replies, without their models. These are added up as they come: in whatever is
        linear in the models of a type, the type's mean with all its samples may stand for them."""
        means = {t: RunningMean() for t in self.theta}
        replies = self.ask(
            "train",
            each=each,
            into=lambda name, reply: means[self.group[name]].add(reply.records["model"], reply.num_examples),
        )
        exact = {t: (mean.exact(), mean.weight) for t, mean in means.items()}
        self.aggregate({t: [(mean, weight)] if mean else [] for t, (mean, weight) in exact.items()})
        return replies

    def aggregate(self, models: Mapping[str, Models]) -> None:
        """Every tensor of every type by ``averaged``, from the old ones."""
        self.theta = {
            t: {name: self.averaged(t, name, w, models) for name, w in tensors.items()}
            for t, tensors in self.theta.items()
        }

    def averaged(self, t: str, name: str, w: Tensor, models: Mapping[str, Models]) -> Tensor:
        """The new value of type t's tensor ``name``, which was ``w``, from the models of each type."""
        raise NotImplementedError

    def having(self, modality: str) -> list[str]:
        """The types that have this modality."""
        return [t for t, modalities in self.modalities.items() if modality in modalities]


def moved(w: Tensor, new: Iterable[Tensor], weights: Iterable[float], total: float, sequential: bool = False) -> Tensor:
    """w + Σ_k n_k (w_k - w) / N, of w's dtype: the mean of ``new`` where the weights sum up to N = ``total``.

    Where N is 0 w stays. ``sequential``: w ← w + n_k / N (w_k - w) for one k after the other, which keeps much of the
    old w.
    """
    if total <= 0:
        return w
    start = now = w.double()
    for w_k, n_k in zip(new, weights, strict=True):
        now = now + n_k / total * (w_k.double() - (now if sequential else start))
    return now.to(w.dtype)
