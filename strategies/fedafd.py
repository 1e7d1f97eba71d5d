"""FedAFD: adversarial alignment, attention fusion and similarity-weighted distillation, server half.

Paper: CVPR 2026, arXiv 2603.04890. Stage 1: the server learns its task on public data. Stage 2: participants align
with its representations (BAA) and fuse its encoder with their own (GFF). Stage 3: they encode the public data, the
server weighs what they see (SED) and learns from it (KD).

Symbols: P public pairs, d dimensions; I_g, T_g [P, d] the server's image and text representations of the public
data, i_c, t_c [P, d] those of participant c, in rows of unit length; their weighted means, the teachers, are shorter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedapps.losses import kd_loss, sed_aggregate
from fedapps.methods import FedAFDParams
from strategies import bounds
from strategies.base import Reply, Strategy
from strategies.public_model import PublicModel

Features = dict[str, Tensor]


class FedAFD(Strategy):
    """One round: encode the public data, let participants align and fuse, aggregate what they see in the public
    data, and train the server on its task and on that.

    ``fedafd.order=joint`` is the paper's objective L_task + γ·L_kd in one step; ``separate`` is the released
    code's order, a task epoch before the participants train and a distillation epoch after.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        assert isinstance(self.settings.params, FedAFDParams)
        self.params = self.settings.params
        self.server = PublicModel(self.settings, self.scenario, self.holdings, self.run)

    def parts(self) -> dict[str, Any]:
        return self.server.parts()

    def prepare(self) -> None:
        self.server.fit(0, self.server.spec.warmup_epochs, name="warm-up")

    def train_round(self, server_round: int) -> None:
        if self.params.order == "separate":
            self.server.fit(server_round, self.server.spec.epochs)  # stage 1: the task on public data
        features = self.server.encode_public()  # I_g, T_g
        shared = {"features": features} if self.params.baa else {}
        replies = self.ask("train", shared, self.encoders())  # stages 2 and 3, on the participants
        self.learn(server_round, self.aggregate(features, replies))

    def check(self, name: str, reply: Reply) -> None:
        """Rows must be no longer than representations can be."""
        for z in reply.records.get("features", {}).values():
            bounds.representations(z, self.scenario.by_name[name].unit)

    def encoders(self) -> dict[str, dict[str, dict[str, Tensor]]]:
        """The frozen global encoders for each participant: only the branches that it has."""
        if not self.params.gff:
            return {}
        branches = {entry.modalities: self.server.encoders(entry.modalities) for entry in self.scenario.participants}
        return {name: {"encoder": branches[entry.modalities]} for name, entry in self.scenario.by_name.items()}

    def aggregate(self, features: Features, replies: dict[str, Reply]) -> Features:
        """SED: for each modality the per-sample weighted mean of the participants' representations [P, d]."""
        teachers: Features = {}
        for modality, anchor in features.items():
            local = [r.records["features"][modality] for r in replies.values() if modality in r.records["features"]]
            if local:
                sed = self.params.sed
                teachers[modality] = (
                    sed_aggregate(local, anchor, self.params.sed_temperature) if sed else torch.stack(local).mean(0)
                )
        return teachers

    def learn(self, server_round: int, teachers: Features) -> None:
        """Server epochs on L_task + γ·L_kd (joint, stages 1 and 3 in one), or on γ·L_kd alone (separate)."""
        device = self.server.public.device
        gamma, metric = self.params.gamma, self.params.kd_metric

        def kd(rows: Tensor, output: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
            students = dict(zip(("image", "text"), output, strict=True))
            losses = {m: kd_loss(students[m], teacher[rows].to(device), metric) for m, teacher in teachers.items()}
            return {f"kd_{m}_loss": gamma * loss for m, loss in losses.items()}

        if self.params.order == "joint":
            task = self.server.task_loss
            self.server.fit(server_round, self.server.spec.epochs, lambda rows, out: task(rows, out) | kd(rows, out))
        elif teachers:
            self.server.fit(server_round, self.server.spec.epochs, kd, "distill")

    def evaluate_server(self) -> dict[str, float]:
        return self.server.evaluate()
