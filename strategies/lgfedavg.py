"""LG-FedAvg, server half: average the heads, keep the rest local.

Paper: Liang et al., 2020, arXiv 2001.01523. The head (weight [C, d], bias [C]) is averaged by samples; encoders stay
with the participants, so they may differ, while d and C may not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedapps.models import LogitHead
from fedapps.seeds import seed_of
from strategies.average import Average


class LGFedAvg(Average):
    """Local representations, global head."""

    travels = "head"

    def build(self, name: str) -> dict[str, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of("init", self.settings.seed, "head"))
            return LogitHead(self.scenario.dim, self.classes[name]).linear.state_dict()
