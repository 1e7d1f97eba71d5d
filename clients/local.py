"""Local, client half: the participant's own task on its own data."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.base import evaluate, local_epochs
from fedapps.participant import Participant

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """``local-epochs`` of the task on private data, then the test."""
    me = Participant(msg, context)
    me.restore()
    metrics = local_epochs(me)
    me.keep()
    return me.reply(metrics=metrics, evaluate=lambda: evaluate(me))


@app.evaluate()
def test(msg: Message, context: Context) -> Message:
    """The test alone, for participants that did not train in this round."""
    me = Participant(msg, context)
    me.restore()
    return me.reply(evaluate=lambda: evaluate(me))
