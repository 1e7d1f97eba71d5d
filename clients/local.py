"""Local, client half: the participant's own task on its own data."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.base import Means, evaluate, task_loss
from fedapps.learner import step
from fedapps.participant import Participant

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """``local-epochs`` of the task on private data, then the test."""
    me = Participant(msg, context)
    me.restore()
    me.model.train()
    means = Means()
    for _ in range(me.settings.local_epochs):
        for rows in me.batches():
            loss = task_loss(me, rows)
            step(loss, [me.optimizer], me.spec.train.clip)
            means.add(task_loss=loss)
    me.keep()
    return me.reply(metrics=means.result(), evaluate=evaluate(me))


@app.evaluate()
def test(msg: Message, context: Context) -> Message:
    """The test alone, for participants that did not train in this round."""
    me = Participant(msg, context)
    me.restore()
    return me.reply(evaluate=evaluate(me))
