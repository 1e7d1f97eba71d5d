"""The unchanged ServerApp and ClientApp in one process: for tests and quick sweeps.

Content is serialised both ways as on a real wire. This is the only place that uses Flower's private modules.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedapps.client_app import app as client_app
from fedapps.results.folder import run_path
from fedapps.server_app import main
from fedapps.settings import read

RUN_ID = 1


def over_the_wire(content: RecordDict) -> RecordDict:
    """What arrives when ``content`` is sent."""
    return recorddict_from_proto(ProtoRecordDict.FromString(recorddict_to_proto(content).SerializeToString()))


class InProcessGrid(Grid):
    """A grid whose nodes are in this process; each message is served when its reply is pulled.

    Parameters
    ----------
    app : ClientApp
        What serves the nodes.
    num_nodes : int
        Number of nodes; their ids start at 100.
    node_configs : list[dict] | None
        Node configs (default: partition ids, as in Flower's simulation).
    run_config : dict
        The run-config that clients see.
    tamper : Callable | None
        Called with (message, reply) before a reply is delivered; returns the reply, or None to lose it.
    """

    def __init__(
        self,
        app: ClientApp,
        num_nodes: int,
        node_configs: list[dict[str, Any]] | None = None,
        run_config: dict[str, Any] | None = None,
        tamper: Callable[[Message, Message], Message | None] | None = None,
    ) -> None:
        configs = node_configs or [{"partition-id": i, "num-partitions": num_nodes} for i in range(num_nodes)]
        self.app = app
        self.tamper = tamper
        self.contexts = {
            100 + i: Context(RUN_ID, 100 + i, config, RecordDict(), run_config or {})
            for i, config in enumerate(configs)
        }
        self.pushed: dict[str, Message] = {}
        self.ids = itertools.count(1)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN_ID, 1

    @property
    def run(self) -> Run:
        return Run.create_empty(RUN_ID)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError("an in-process grid has one run")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError("deprecated by Flower: construct a Message")

    def get_nodes(self) -> Iterable[Any]:
        raise NotImplementedError("in-process nodes have ids only")

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = {f"m{next(self.ids)}": message for message in messages}
        for message_id, message in ids.items():
            message.metadata.__dict__["_message_id"] = message_id
        self.pushed |= ids
        return list(ids)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        served = [self._serve(self.pushed.pop(message_id)) for message_id in message_ids if message_id in self.pushed]
        return [reply for reply in served if reply is not None]

    def _serve(self, message: Message) -> Message | None:
        content, message.content = message.content, over_the_wire(message.content)
        message.metadata.__dict__["_created_at"] = time.time()  # nobody here begins late
        try:
            reply = self.app(message, self.contexts[message.metadata.dst_node_id])
            reply.content = over_the_wire(reply.content)
        except Exception as error:
            reason = f"{type(error)}:<'{error}'>"
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        message.content = content
        reply.metadata.__dict__["_message_id"] = f"r{message.metadata.message_id}"
        return self.tamper(message, reply) if self.tamper else reply

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def run(run_config: dict[str, Any], num_nodes: int = 2, **grid: Any) -> Path:
    """One run in this process; returns its run folder. ``run-name`` must be given."""
    settings, _ = read(run_config)
    context = Context(RUN_ID, 0, {}, RecordDict(), run_config)
    main(InProcessGrid(client_app, num_nodes, run_config=run_config, **grid), context)
    return run_path(settings)
