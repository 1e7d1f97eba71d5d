"""FedHeNN, server half: the mean of what the participants' kernels make of some public samples.

Paper: Makhija et al., "Architecture Agnostic Federated Learning for Neural Networks", ICML 2022, arXiv 2202.07757.
K_n [l, l] is the centred Gram matrix of participant n's representations of l samples, which are drawn anew each round;
K̄ is the plain mean over those that trained in the round before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedapps.methods import FedHeNNParams
from fedapps.seeds import generator
from strategies import bounds
from strategies.base import Reply, Strategy


class FedHeNN(Strategy):
    """Models of any form for any task, held together by the geometry of their representations.

    K̄ of a round's samples is made from what its participants sent at the end of the round before, so that a round is
    one exchange; the first round has none. After a round that failed K̄ is of the samples of that one.
    """

    def setup(self) -> None:
        self.aligned: dict[str, dict[str, Tensor]] = {}  # K̄ and the rows that it is of, once there is one

    def state_dict(self) -> dict[str, Any]:
        return {"aligned": self.aligned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.aligned = dict(state["aligned"])

    def train_round(self, server_round: int) -> None:
        following = {"rows": self.rows(server_round + 1)}
        replies = self.ask("train", {"next": following, **self.aligned})
        grams = [reply.records["gram"]["K"].double() for reply in replies.values()]
        mean = {"K": torch.stack(grams).mean(dim=0).float()} if grams else {}  # train-only may leave nobody
        self.aligned = {"rows": following, "target": mean} if mean else {}

    def check(self, name: str, reply: Reply) -> None:
        """The matrix must be a Gram matrix."""
        if gram := reply.records.get("gram"):
            bounds.gram(gram["K"], self.scenario.by_name[name].unit)

    def rows(self, server_round: int) -> Tensor:
        """Which public samples a round is held together by [l]."""
        assert isinstance(self.settings.params, FedHeNNParams)
        rng = generator(self.settings.seed, server_round, "public rows")
        size = self.settings.params.sizes(len(self.holdings.public))["K"]
        return torch.randperm(len(self.holdings.public), generator=rng)[:size]
