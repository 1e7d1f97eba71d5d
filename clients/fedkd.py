"""FedKD, client half: mentor (own model) and mentee θ learn from the labels and, as far as they are right, from each
other.

Paper: Wu et al., Nature Communications 13 (2022), arXiv 2108.13323. With task losses L_t of the mentor and L_s of the
mentee, logits o and representations h, W personal, teachers and denominators fixed:
mentor: L_t + KL(p_s ‖ p_t)/(L_s + L_t) + MSE(h_t, W h_s)/(L_s + L_t); mentee: L_s + KL(p_t ‖ p_s)/(L_s + L_t) + the
same MSE. Up goes Δθ as truncated SVD that holds an energy rising from t-start to t-end over the rounds.
"""

from __future__ import annotations

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional as F

from clients.base import Means, control, evaluate, kl
from fedapps.learner import build_optimizer, plain, set_rate, step
from fedapps.low_rank import compress
from fedapps.methods import FedKDParams
from fedapps.models import Model, head_of
from fedapps.participant import Participant

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Local epochs of both models; the mentee's update travels."""
    me = Participant(msg, context)
    mentee = me.shared_model()
    before = {name: tensor.clone() for name, tensor in mentee.state_dict().items()}
    W = nn.Linear(me.scenario.dim, me.scenario.dim, bias=False).to(me.device)
    me.restore(W=W)
    optimizer = build_optimizer(me.spec.train, [*mentee.parameters(), *W.parameters()])
    set_rate(optimizer, me.spec.train, me.round, me.settings.num_server_rounds)
    me.model.train()
    mentee.train()
    means = Means()
    for _ in range(me.settings.local_epochs):
        for rows in me.batches():
            mentor_loss, mentee_loss = losses(me, mentee, W, rows)
            step(mentor_loss + mentee_loss, [me.optimizer, optimizer], me.spec.train.clip)
            means.add(task_loss=mentor_loss, mentee_loss=mentee_loss)
    me.keep(W=W)
    update = {name: tensor - before[name] for name, tensor in mentee.state_dict().items()}
    return me.reply({"update": compress(update, energy(me))}, means.result())


@app.evaluate()
def test(msg: Message, context: Context) -> Message:
    """The test of the mentor, and of θ as it comes."""
    me = Participant(msg, context)
    me.restore()
    return me.reply(evaluate=lambda: tests(me, me.shared_model()))


def losses(me: Participant, mentee: Model, W: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The mentor's and the mentee's loss on private rows."""
    y, modality = me.train.targets(rows), me.spec.modalities[0]
    h_t, h_s = plain(me.model)(me.train, modality, rows), plain(mentee)(me.train, modality, rows)
    o_t, o_s = head_of(me.model)(h_t), head_of(mentee)(h_s)
    L_t, L_s = F.cross_entropy(o_t, y), F.cross_entropy(o_s, y)
    trust = 1 / (L_t + L_s).detach().clamp(min=1e-8)
    mentor = L_t + trust * (kl(o_s, o_t) + F.mse_loss(h_t, W(h_s).detach()))
    return mentor, L_s + trust * (kl(o_t, o_s) + F.mse_loss(W(h_s), h_t.detach()))


def energy(me: Participant) -> float:
    """The share of a matrix's energy that its update keeps in this round: rises linearly over the rounds."""
    params = me.settings.params
    assert isinstance(params, FedKDParams)
    done = (me.round - 1) / max(me.settings.num_server_rounds - 1, 1)
    return params.t_start + min(done, 1.0) * (params.t_end - params.t_start)


@torch.no_grad()
def tests(me: Participant, mentee: Model) -> dict[str, float]:
    """The mentor's test metrics, and the mentee's accuracy beside them."""
    mentee.eval()
    return evaluate(me) | control(me, "shared", plain(mentee), head_of(mentee))
