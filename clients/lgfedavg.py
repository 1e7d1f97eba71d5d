"""LG-FedAvg, client half: own encoder, averaged head.

Paper: Liang et al., 2020, arXiv 2001.01523. The head comes from the server, the encoder persists here.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.base import evaluate, local_epochs
from fedapps.models import head_of
from fedapps.participant import Participant

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Local epochs of encoder and head together; the head travels."""
    me = Participant(msg, context)
    me.restore()
    head = head_of(me.model).linear
    head.load_state_dict(me.received("head"))
    metrics = local_epochs(me)
    me.keep()
    return me.reply({"head": head.state_dict()}, metrics)


@app.evaluate()
def test(msg: Message, context: Context) -> Message:
    """The test of the own encoder with the averaged head."""
    me = Participant(msg, context)
    me.restore()
    head_of(me.model).linear.load_state_dict(me.received("head"))
    return me.reply(evaluate=lambda: evaluate(me))
