"""FML, client half: own model ω_k and meme model θ teach each other.

Paper: Shen et al., "Federated Mutual Learning", 2020, arXiv 2006.16765.
L_k = α·CE(ω_k) + (1-α)·KL(p_θ ‖ p_k),   L_g = β·CE(θ) + (1-β)·KL(p_k ‖ p_θ); teachers are fixed, KL is a mean over
samples. (Released codes average KL over classes too, and let its gradient into the teacher.)
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch.nn import functional as F

from clients.base import Means, control, evaluate, kl
from fedapps.learner import build_optimizer, plain, set_rate, step
from fedapps.methods import FMLParams
from fedapps.models import head_of
from fedapps.participant import Participant

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Local epochs on L_k and L_g; θ travels."""
    me = Participant(msg, context)
    me.restore()
    params, meme = me.settings.params, me.shared_model()
    assert isinstance(params, FMLParams)
    meme_optimizer = build_optimizer(me.spec.train, meme.parameters())
    set_rate(meme_optimizer, me.spec.train, me.round, me.settings.num_server_rounds)
    me.model.train()
    meme.train()
    means, modality = Means(), me.spec.modalities[0]
    for _ in range(me.settings.local_epochs):
        for rows in me.batches():
            y = me.train.targets(rows)
            own, shared = (head_of(model)(plain(model)(me.train, modality, rows)) for model in (me.model, meme))
            L_k = params.alpha * F.cross_entropy(own, y) + (1 - params.alpha) * kl(shared, own)
            L_g = params.beta * F.cross_entropy(shared, y) + (1 - params.beta) * kl(own, shared)
            step(L_k + L_g, [me.optimizer, meme_optimizer], me.spec.train.clip)
            means.add(task_loss=L_k, meme_loss=L_g)
    me.keep()
    return me.reply({"shared": meme.state_dict()}, means.result())


@app.evaluate()
def test(msg: Message, context: Context) -> Message:
    """The test of the own model, and of θ as it comes."""
    me = Participant(msg, context)
    me.restore()
    return me.reply(evaluate=lambda: tests(me, me.shared_model()))


def tests(me: Participant, meme) -> dict[str, float]:  # type: ignore[no-untyped-def]
    """The own model's test metrics, and the meme's accuracy beside them."""
    meme.eval()
    return evaluate(me) | control(me, "shared", plain(meme), head_of(meme))
