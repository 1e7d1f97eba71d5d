"""The ClientApp: opens a message and hands it to the ClientApp of the named method, participant by participant."""

from __future__ import annotations

import copy
import platform
import re
import time
import traceback
from logging import ERROR, WARNING
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from fedapps import wire
from fedapps.checks import participant_problems
from fedapps.code_hash import code_hash, folder
from fedapps.contract import Contract
from fedapps.errors import UserError
from fedapps.files import lock, try_folder, writing
from fedapps.holdings import holdings
from fedapps.methods import method
from fedapps.participant import data_path, pick_device, state_root
from fedapps.scenario import Scenario
from fedapps.settings import Settings

Records = dict[str, Any]


def hosted(context: Context, scenario: Scenario) -> list[str]:
    """The participants of this node.

    A deployed node names its own (``--node-config 'participant="image-0"'``, several with spaces or commas
    between them); otherwise node ``p`` of ``n`` hosts participants p, p+n, p+2n, … of the scenario.
    """
    names = list(scenario.by_name)
    if "participant" not in context.node_config:
        return names[int(context.node_config["partition-id"]) :: int(context.node_config["num-partitions"])]
    own = re.split(r"[\s,]+", str(context.node_config["participant"]).strip())
    unknown = [name for name in own if name not in names]
    if unknown:
        raise UserError(
            f"node config: scenario {scenario.name} has no participant '{unknown[0]}' (it has: {', '.join(names)})"
        )
    return own


def hello(message: Message, context: Context) -> Message:
    """Who this node hosts, and what the server must know to trust it with the run."""
    config = message.content.config_records[f"{wire.ALL}/{wire.CONFIG}"]
    scenario = Scenario.parse(str(config["scenario"]))
    settings = Settings.parse(str(config["settings"]))
    held = holdings(str(config["scenario"]), settings.seed, data_path(context, settings))
    names = hosted(context, scenario)
    method(settings.algo).load_client()
    folder_of_state = state_root(context, config)
    with writing("state-dir", folder_of_state, "; name another with --node-config 'state-dir=\"<folder>\"'"):
        try_folder(folder_of_state)
    for name in names:
        for problem in participant_problems(scenario, held, name):
            raise UserError(problem)
        if not len(held.test(name)):
            log(WARNING, "%s has no test data: it trains and is not tested", name)
    answer = ConfigRecord(
        {
            "participants": names,
            "num-examples": [len(held.train(name)) for name in names],
            "num-classes": [held.num_classes(name) for name in names],
            "label-sets": [held.label_set(name) for name in names],
            "public-hash": held.public_hash,
            "code-hash": code_hash(),
            "code-folder": str(folder("fedapps").parent),
            "device": str(pick_device(settings.device)),
            "host": platform.node(),
        }
    )
    return Message(RecordDict({wire.CONFIG: answer}), reply_to=message)


def answer(name: str, message: Message, context: Context) -> Records:
    """One participant's answer: its records are checked against the method's contract both ways."""
    shared = wire.records_of(message.content, wire.ALL)
    own = wire.records_of(message.content, name)
    config = ConfigRecord({**shared.pop(wire.CONFIG), "participant": name})
    settings = Settings.parse(str(config["settings"]))
    scenario = Scenario.parse(str(config["scenario"]))
    if name not in hosted(context, scenario):
        raise UserError(f"this node does not host {name}")
    entry = method(settings.algo)
    phase = message.metadata.message_type.rpartition(".")[2]
    world = (str(config["settings"]), str(config["scenario"]), data_path(context, settings))
    held = holdings(world[1], settings.seed, world[2])
    contract = Contract(*world, name, held.num_classes(name))
    contract.down(phase, {**shared, **own})
    sub = copy.copy(message)
    sub.content = RecordDict({**shared, **own, wire.CONFIG: config})
    state = state_root(context, config) / name
    with writing("state-dir", state):
        state.mkdir(parents=True, exist_ok=True)
    taken = f"{name} is still at work for an earlier round"  # a straggler, which must not meddle with this one's state
    with lock("state-dir", state, taken, settings.round_timeout / 2):
        if time.time() > message.metadata.created_at + settings.round_timeout:  # later rounds may be done already
            raise UserError(f"{name} was asked more than {settings.round_timeout:g} s ago: nothing was done")
        reply = entry.load_client()(sub, context)
    records: Records = dict(reply.content.items())
    contract.up(phase, records)
    return records


def told(error: Exception) -> str:
    """What the server may know of a failure: our own messages, of others the kind, as they may quote data."""
    if isinstance(error, UserError | wire.WireError):
        return str(error)
    return f"{type(error).__name__} (the log of its node says more)"


class Host(ClientApp):
    """Serves every participant of this node; one that raises fails alone."""

    def __call__(self, message: Message, context: Context) -> Message:
        config = message.content.config_records[f"{wire.ALL}/{wire.CONFIG}"]
        torch.set_num_threads(Scenario.parse(str(config["scenario"])).threads)
        if message.metadata.message_type == "query.hello":
            try:
                return hello(message, context)
            except Exception as error:
                log(ERROR, "hello failed:\n%s", traceback.format_exc())
                about = ConfigRecord({"error": told(error), "host": platform.node()})
                return Message(RecordDict({wire.ERROR: about}), reply_to=message)
        out: Records = {}
        names: Any = config["participants"]
        for name in names:
            try:
                out |= wire.prefixed(name, answer(name, message, context))
            except Exception as error:
                log(ERROR, "participant %s failed:\n%s", name, traceback.format_exc())
                out |= wire.prefixed(name, {wire.ERROR: ConfigRecord({"error": told(error)})})
        return Message(RecordDict(out), reply_to=message)


app = Host()
