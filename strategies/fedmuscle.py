"""FedMuscle, server half: hand each participant the public representations of M others.

Paper: ICLR 2026, arXiv 2602.01626. z^n [K, d] are the unit representations that participant n has made of the K public
samples of an exchange: one step of B samples, or all steps of an epoch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedapps.losses import alignment_and_grad, tuple_matrix
from fedapps.methods import FedMuscleParams
from fedapps.seeds import generator
from strategies import bounds
from strategies.base import Content, Reply, Strategy


class FedMuscle(Strategy):
    """Multi-task learning with heterogeneous models by one contrast of all of them.

    Local and contrastive phases take turns, local first. A round ends with a local phase, so that heads fit their
    representations when they are tested: the first is a local phase alone.
    """

    def train_round(self, server_round: int) -> None:
        if server_round == 1:
            self.ask("train")
            return
        exchanges = self.exchanges(server_round)
        replies = self.ask("represent", {"next": {"rows": exchanges[0]}})
        for rows, following in zip(exchanges, [*exchanges[1:], None], strict=True):
            Z = self.representations(replies, rows)
            each = {name: self.others(name, Z) for name in Z}
            shared: Content = {"rows": {"rows": rows}}
            if following is None:
                self.ask("train", shared, each, to=list(Z))
            else:
                replies = self.ask("align", {**shared, "next": {"rows": following}}, each, to=list(Z))

    def check(self, name: str, reply: Reply) -> None:
        """Rows must be no longer than 1: they would drown all others."""
        if public := reply.records.get("public"):
            bounds.representations(public["z"], unit=True)

    def exchanges(self, server_round: int) -> list[Tensor]:
        """The public rows [K] of each exchange: T epochs in an order of their own, whole steps of B only."""
        params = self.params
        sizes = params.sizes(len(self.holdings.public))
        rng = generator(self.settings.seed, server_round, "public rows")
        epochs = [torch.randperm(len(self.holdings.public), generator=rng) for _ in range(params.epochs)]
        whole = len(self.holdings.public) // sizes["B"] * sizes["B"]
        return [rows for epoch in epochs for rows in epoch[:whole].split(sizes["K"])]

    def representations(self, replies: dict[str, Reply], rows: Tensor) -> dict[str, Tensor]:
        """z^n by participant; without those that encoded other rows, as theirs would be no positives."""
        Z, refused = {}, {}
        for name, reply in replies.items():
            if torch.equal(reply.records["public"]["rows"], rows):
                Z[name] = reply.records["public"]["z"]
            else:
                refused[name] = "it encoded other public rows than it was asked to"
        for name, reason in refused.items():
            self.leave_out("align", name, reason)
        self.need(min(self.settings.min_participants, len(replies)), len(Z), "align", refused)
        return Z

    def others(self, name: str, Z: dict[str, Tensor]) -> Content:
        """What participant n gets of M others, drawn for this exchange and permuted; nothing if there is none."""
        params, B = self.params, self.params.sizes(len(self.holdings.public))["B"]
        rest = [other for other in Z if other != name]
        drawn = torch.randperm(len(rest), generator=generator(self.settings.seed, self.round, self.step, name))
        others = [Z[rest[i]] for i in drawn[: params.num_sampled]]
        if not others:
            return {}
        match params.wire:
            case "matrices":
                return {"others": {str(m): z for m, z in enumerate(others)}}
            case "grad":
                loss, gradient = alignment_and_grad(params.loss, Z[name], others, params.tau, params.tau_prev)
                return {"gradient": {"z": gradient, "loss": loss, "others": torch.tensor(float(len(others)))}}
            case "tuples":
                steps = zip(*(z.split(B) for z in others), strict=True)
                S, log_alpha = zip(*(tuple_matrix(step, params.tau, params.tau_prev) for step in steps), strict=True)
                M = len(others)
                return {"tuples": {f"S-{M}": torch.cat(S), f"log-alpha-{M}": torch.cat(log_alpha)}}

    @property
    def params(self) -> FedMuscleParams:
        assert isinstance(self.settings.params, FedMuscleParams)
        return self.settings.params
