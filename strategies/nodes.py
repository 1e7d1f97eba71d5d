"""Who is there: the nodes of a run, and which participants each of them hosts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from logging import INFO, WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log

from fedapps import wire
from fedapps.code_hash import code_hash, folder
from fedapps.errors import RunFailed
from fedapps.holdings import Holdings
from fedapps.scenario import Scenario
from fedapps.settings import Settings
from strategies.post import EXPIRED, Post, short

GONE = (*EXPIRED, 5)
"""Flower's error codes of a node that is not there; others are of one that is, and cannot run the app."""

HELLO = 30.0
"""Seconds that a round waits for a node that has come to say whom it hosts; one that takes longer is met later."""

HOSTED: dict[str, type] = {"participants": str, "num-examples": int, "num-classes": int, "label-sets": str}
"""What a node says of those that it hosts: lists of the same length."""


class Nodes:
    """Meets the nodes that come, and forgets those that go.

    What is wrong with a node ends the run before its first round, and later leaves the node out.

    Parameters
    ----------
    settings : Settings
        The checked run-config.
    scenario : Scenario
        Who takes part.
    holdings : Holdings
        The server's view of the data, whose public part all nodes must have.
    post : Post
        How messages are sent.
    config : Callable[[list[str]], ConfigRecord]
        What every message tells.
    """

    def __init__(
        self,
        settings: Settings,
        scenario: Scenario,
        holdings: Holdings,
        post: Post,
        config: Callable[[list[str]], ConfigRecord],
    ) -> None:
        self.settings = settings
        self.scenario = scenario
        self.holdings = holdings
        self.post = post
        self.config = config
        self.begun = False  # whether all participants have been there
        self.of: dict[str, int] = {}  # participant -> node id
        self.examples: dict[str, int] = {}  # participant -> its number of training samples
        self.classes: dict[str, int] = {}  # participant -> number of classes of its task, 0 where it has none
        self.labels: dict[str, str] = {}  # participant -> a hash of its classes' names
        self.greeted: dict[int, list[str]] = {}  # node -> the participants that it hosts, as it has said
        self.hellos: dict[str, int] = {}  # message id -> the node that is asked for that
        self.broken: set[int] = set()  # nodes that have answered with an error: each is asked a second time

    def meet_all(self) -> None:
        """Meet nodes until every participant is hosted; ``RunFailed`` with the missing names at the deadline."""
        everybody = list(self.scenario.by_name)
        self.meet(0)
        if missing := self.wait_for(everybody, len(everybody)):
            raise RunFailed(
                f"after {self.settings.round_timeout:g} s no node hosts {', '.join(missing)}; start a SuperNode "
                f"with --node-config 'participant=\"{missing[0]}\"', or raise round-timeout"
            )
        self.begun = True
        log(INFO, "%d participants on %d nodes", len(self.of), len(set(self.of.values())))

    def gather(self, chosen: list[str]) -> None:
        """Meet nodes until as many of a round's participants are hosted as it needs, or the deadline: they may be
        away for a while, as when a network is down. With one missing, nodes that host nobody are asked once more."""
        self.meet(HELLO)
        if any(name not in self.of for name in self.scenario.by_name):
            self.greeted = {node: names for node, names in self.greeted.items() if names}
            self.meet(HELLO)
        self.wait_for(chosen, min(self.settings.min_participants, len(chosen)))

    def wait_for(self, names: list[str], least: int) -> list[str]:
        """Meet nodes until they host ``least`` of some participants, or the deadline; those that no node hosts."""
        started, told = time.monotonic(), -math.inf
        while len(missing := [name for name in names if name not in self.of]) > len(names) - least:
            waited = time.monotonic() - started
            if waited > self.settings.round_timeout:
                break
            if waited > told + 30:
                log(INFO, "waiting for nodes that host %s", ", ".join(missing))
                told = waited
            time.sleep(0.1)
            self.meet(0)
        return missing

    def meet(self, patience: float) -> None:
        """Shake hands with nodes that have come, forget those that have gone.

        Nobody waits longer than ``patience`` seconds for one that has come to answer; it is met when it does.
        """
        present = set(self.post.grid.get_node_ids())
        self.greeted = {node: names for node, names in self.greeted.items() if node in present}
        self.of = {name: node for node, names in self.greeted.items() for name in names}  # of two the newer
        self.hellos = {message_id: node for message_id, node in self.hellos.items() if node in present}
        content = RecordDict({f"{wire.ALL}/{wire.CONFIG}": self.config([])})
        new = sorted(present - set(self.greeted) - set(self.hellos.values()))
        asked = {node: Message(content, node, "query.hello", ttl=self.post.ttl, group_id="0") for node in new}
        self.hellos |= self.post.push(asked)
        for node, reply in self.post.pull(self.hellos, min(patience, self.settings.round_timeout) if new else 0):
            if reply.has_error() and self.may_come_round(node, reply.error.code):
                log(WARNING, "a node did not answer: %s", short(reply.error.reason))
                continue
            self.greeted[node] = []
            try:
                self.welcome(node, reply)
            except RunFailed as error:
                if not self.begun:
                    raise
                log(WARNING, "a node that has come is left out: %s", error)  # the round goes on without it

    def may_come_round(self, node: int, code: int) -> bool:
        """Whether a node that answered with an error is asked again: one that has gone, as long as it is listed; one
        that cannot run the app, once, as another process of its machine may just be unpacking the app."""
        first = node not in self.broken
        if code not in GONE:
            self.broken.add(node)
        return first or code in GONE

    def welcome(self, node: int, reply: Message) -> None:
        """Check that a node runs the same code on the same public data, and learn whom it hosts."""
        if reply.has_error():
            raise RunFailed(
                f"node {node} cannot run the app: {short(reply.error.reason)}; its log says more; install there what "
                "the server has, in the same version"
            )
        content = reply.content
        if wire.ERROR in content:
            told = {key: str(value) for key, value in content[wire.ERROR].items()}
            raise RunFailed(f"the node on {told.get('host', 'an unknown host')}: {short(told.get('error'))}")
        if wire.CONFIG not in content.config_records:
            raise RunFailed("a node answered the first message with something else; it runs another app")
        about = content.config_records[wire.CONFIG]
        host = str(about.get("host", "an unknown host"))
        if about.get("code-hash") != code_hash():
            raise RunFailed(
                f"the node on {host} runs other code, from {about.get('code-folder')!s}, than the server, from "
                f"{folder('fedapps').parent}; install the same version on both, or, in simulation, stop the local "
                "SuperLink that was started with the other"
            )
        if about.get("public-hash") != self.holdings.public_hash:
            raise RunFailed(f"the node on {host} holds other public data, or in another order, than the server")
        hosted = hosted_by(about, host)
        for name, _, number, label_set in hosted:  # all of them, before any is taken up
            if name not in self.scenario.by_name:
                raise RunFailed(f"the node on {host} hosts '{name}', which is not in scenario {self.scenario.name}")
            if name in self.of and not self.begun:
                raise RunFailed(f"two nodes host {name}; give each SuperNode its own participant")
            if self.begun and (number, label_set) != (self.classes[name], self.labels[name]):
                raise RunFailed(f"the data of {name} on {host} have other classes than at the start of the run")
        for name, count, number, label_set in hosted:
            self.examples[name], self.classes[name], self.labels[name] = count, number, label_set
            self.of[name] = node  # later the newest counts: a restarted node may still be listed by its old id
            self.greeted[node].append(name)
            log(INFO, "%s: %d samples, %s on %s", name, count, about.get("device"), host)


def hosted_by(about: ConfigRecord, host: str) -> list[tuple[str, int, int, str]]:
    """Name, samples, classes and label set of each participant of a node; ``RunFailed`` where it does not say so."""
    columns: list[Any] = [about.get(key) for key in HOSTED]
    pairs = zip(columns, HOSTED.values(), strict=True)
    lists = all(isinstance(column, list) and all(type(value) is kind for value in column) for column, kind in pairs)
    if not lists or len({len(column) for column in columns}) > 1:
        raise RunFailed(f"the node on {host} does not say whom it hosts in a way that can be read")
    return list(zip(*columns, strict=True))
