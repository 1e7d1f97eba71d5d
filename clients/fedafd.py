"""FedAFD: adversarial alignment, attention fusion and similarity-weighted distillation, client half.

Paper: CVPR 2026, arXiv 2603.04890. Of participant c: i_c, t_c are its representations; i_g, t_g those of the
frozen global encoder; D_in and D_cr its discriminators within and across modalities; all rows have unit length.
Discriminators and fusion module (GFF) never leave the participant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.optim import Adam

from clients.base import Means, evaluate, task_loss
from fedapps.learner import Represent, View, build_encoders, plain, representations, step
from fedapps.losses import Discriminator, discriminator_loss, generator_loss
from fedapps.methods import FedAFDParams
from fedapps.models import GFF, Model
from fedapps.participant import Participant
from fedapps.scenario import Modality

OTHER: dict[Modality, Modality] = {"image": "text", "text": "image"}
Features = dict[Modality, Tensor]

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Stage 2: local epochs on L_task (through GFF) + β·L_adv. Stage 3: the public data through the own encoder."""
    me = Participant(msg, context)
    afd = FedAFD(me)
    afd.restore(new_round=True)
    afd.encoder.load_state_dict(me.received("encoder"))
    features = {modality: z.to(me.device) for modality, z in me.received("features").items()}  # I_g, T_g
    epochs = afd.joint_epochs if afd.params.order == "joint" else afd.separate_epochs
    metrics = epochs(features)
    me.keep(**afd.parts())
    public = {m: representations(me.model, me.public, m, plain(me.model)) for m in me.spec.modalities}  # i_c, t_c
    return me.reply({"features": public}, metrics, evaluate=afd.evaluate)


@app.evaluate()
def test(msg: Message, context: Context) -> Message:
    """The test alone, with the global encoder of the last round that this participant trained in."""
    me = Participant(msg, context)
    afd = FedAFD(me)
    trained = afd.restore()
    return me.reply(evaluate=afd.evaluate if trained else lambda: evaluate(me))  # first there is nothing to fuse with


class FedAFD:
    """A participant's FedAFD: beside its model a frozen global encoder, the fusion module and discriminators."""

    def __init__(self, me: Participant) -> None:
        self.me = me
        assert isinstance(me.settings.params, FedAFDParams)
        self.params = p = me.settings.params
        dim, modalities = me.scenario.dim, me.spec.modalities
        server = me.scenario.server
        encoders = build_encoders(server, dim, modalities) if p.gff and server else {}
        self.global_model = Model(encoders, None).requires_grad_(False).eval().to(me.device)
        self.encoder = self.global_model.encoders
        self.gff = GFF(dim, reuse_t2=p.gff_reuse_t2).to(me.device)
        self.gff_optimizer = Adam(self.gff.parameters(), lr=p.gff_learning_rate, weight_decay=p.gff_weight_decay)
        games = {m: "both" if p.shared_discriminators else m for m in modalities}
        self.D_in, self.D_cr = (
            nn.ModuleDict({game: Discriminator(dim, p.double_sigmoid) for game in games.values()}).to(me.device)
            for _ in range(2)
        )
        self.games = games
        self.D_optimizer = Adam([*self.D_in.parameters(), *self.D_cr.parameters()], lr=p.discriminator_learning_rate)

    def parts(self) -> dict[str, Any]:
        """What the participant keeps between rounds, beside its model."""
        fusion = {"encoder": self.encoder, "gff": self.gff, "gff_optimizer": self.gff_optimizer}
        alignment = {"D_in": self.D_in, "D_cr": self.D_cr, "D_optimizer": self.D_optimizer}
        return (fusion if self.params.gff else {}) | (alignment if self.params.baa else {})

    def restore(self, new_round: bool = False) -> bool:
        """Load what was kept, if anything; the released code starts each round with a new fusion module."""
        parts = self.parts()
        if new_round and not self.params.gff_persist:
            parts = {name: part for name, part in parts.items() if not name.startswith("gff")}
        return self.me.restore(**parts)

    # ---------------------------------------------------------------------------------------- training

    def joint_epochs(self, features: Features) -> dict[str, float]:
        """The paper's objective: each step has a private batch for L_task and a public one for β·L_adv."""
        me, means = self.me, Means()
        represent = self.fused(self.global_features())
        self.train_mode()
        for _ in range(me.settings.local_epochs):
            for rows, public_rows in zip(me.batches(), self.public_batches(), strict=False):
                loss = task = task_loss(me, rows, represent)
                means.add(task_loss=task)
                if self.params.baa:
                    adv, d = self.align(features, public_rows)
                    loss = task + self.params.beta * adv
                    means.add(adversarial_loss=adv, discriminator_loss=d)
                step(loss, self.optimizers(), me.spec.train.clip)
        return means.result()

    def separate_epochs(self, features: Features) -> dict[str, float]:
        """The released code's order: in each epoch a pass of alignment over the public data, then one of the task."""
        me, means = self.me, Means()
        represent = self.fused(self.global_features())
        self.train_mode()
        for _ in range(me.settings.local_epochs):
            for rows in me.batches(me.public) if self.params.baa else []:
                adv, d = self.align(features, rows)
                step(self.params.beta * adv, [me.optimizer], me.spec.train.clip)
                means.add(adversarial_loss=adv, discriminator_loss=d)
            for rows in me.batches():
                task = task_loss(me, rows, represent)
                step(task, self.optimizers(), me.spec.train.clip)
                means.add(task_loss=task)
        return means.result()

    def align(self, features: Features, rows: Tensor) -> tuple[Tensor, Tensor]:
        """BAA on some public rows: one step of the discriminators, then the encoder's loss L_adv.

        D_in tells i_g from i_c, D_cr tells t_g from i_c (for text the other way round).
        """
        me = self.me
        pairs = []  # (discriminator, real, fake)
        for m, game in self.games.items():
            fake = plain(me.model)(me.public, m, rows)
            pairs += [(self.D_in[game], features[m][rows], fake), (self.D_cr[game], features[OTHER[m]][rows], fake)]
        d_loss = torch.stack([discriminator_loss(D, real, fake) for D, real, fake in pairs]).sum()
        step(self.params.beta * d_loss, [self.D_optimizer])  # β as in the released code; Adam hardly sees it
        return torch.stack([generator_loss(D, fake) for D, _, fake in pairs]).sum(), d_loss

    # ------------------------------------------------------------------------------------------ fusion

    def fused(self, known: Features | None = None) -> Represent:
        """GFF of local and global representations; ``known`` gives the global ones of private rows."""
        local, global_ = plain(self.me.model), plain(self.global_model)
        if not self.params.gff:
            return local

        def represent(view: View, modality: Modality, rows: Tensor) -> Tensor:
            z = local(view, modality, rows)
            z_g = known[modality][rows].to(z.device) if known else global_(view, modality, rows)
            return self.gff(z, z_g)

        return represent

    def global_features(self) -> Features:
        """The frozen global encoder's representations of the private samples: once a round."""
        modalities = self.me.spec.modalities if self.params.gff else ()
        return {m: representations(self.global_model, self.me.train, m, plain(self.global_model)) for m in modalities}

    def evaluate(self) -> dict[str, float]:
        """Tests of the fused model, and as controls of the local encoder and of the global encoder alone."""
        me = self.me
        self.gff.eval()
        metrics = evaluate(me, self.fused())
        if not self.params.gff:
            return metrics
        controls = {"local": plain(me.model)}
        if me.model.head is None:  # a head is trained on fused representations; without one the global ones rank too
            controls["global"] = plain(self.global_model)
        for name, represent in controls.items():
            alone = evaluate(me, represent)
            metrics |= {f"{name}_{key}": alone[key] for key in (me.task.primary, "r10_sum") if key in alone}
        return metrics

    def train_mode(self) -> None:
        self.me.model.train()
        self.gff.train()

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.me.optimizer, *([self.gff_optimizer] if self.params.gff else [])]

    def public_batches(self) -> Iterator[Tensor]:
        """Public batches without end, in a new order each time around."""
        while True:
            yield from self.me.batches(self.me.public)
