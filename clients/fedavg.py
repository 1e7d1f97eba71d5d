"""FedAvg, client half: local epochs from the averaged model.

Paper: McMahan et al., AISTATS 2017, arXiv 1602.05629. The optimiser starts anew in each round: nothing is personal.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.base import evaluate, local_epochs
from fedapps.learner import set_rate
from fedapps.participant import Participant

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """w_k ← w - η∇L over ``local-epochs``; tested once it is averaged."""
    me = Participant(msg, context)
    me.model.load_state_dict(me.received("model"))
    set_rate(me.optimizer, me.spec.train, me.round, me.settings.num_server_rounds)
    metrics = local_epochs(me)
    return me.reply({"model": me.model.state_dict()}, metrics)


@app.evaluate()
def test(msg: Message, context: Context) -> Message:
    """The test of the averaged model."""
    me = Participant(msg, context)
    me.model.load_state_dict(me.received("model"))
    return me.reply(evaluate=lambda: evaluate(me))
