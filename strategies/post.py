"""Messages to nodes and what they answer, over Flower's grid."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import TypeVar

from flwr.app import Error, Message
from flwr.serverapp import Grid

from fedapps.errors import RunFailed
from fedapps.results.folder import RunFolder
from fedapps.settings import Settings

K = TypeVar("K")

PULLED = 4
"""Replies that are fetched at once at most: 32 models are in memory."""

EXPIRED = (3, 4)
"""Flower's error codes of a message, or of its reply, that is no more."""

FLOWERS = re.compile(r"<class '(?:.*\.)?([^.]+)'>:<'(.*)'>", re.DOTALL)
"""An exception as Flower tells it."""

MOST_SAID = 500
"""Characters of an error that a participant may put into the records of a run."""


class Post:
    """Pushes messages and pulls replies, each within a deadline. ``grid`` is given when the run starts."""

    grid: Grid

    def __init__(self, settings: Settings, run: RunFolder) -> None:
        self.settings = settings
        self.run = run

    @property
    def ttl(self) -> float:
        """Seconds that a message and its reply live. A reply that has come in time must not expire while others are
        read; a message that nobody has begun by the deadline should soon be gone."""
        return 1.25 * self.settings.round_timeout

    def exchange(self, messages: Mapping[K, Message]) -> Iterator[tuple[K, Message]]:
        """Push messages and yield the replies, as they come until the deadline, by the keys of their messages.

        A message that Flower does not take is answered by an error.
        """
        waiting = self.push(messages)
        for key, message in messages.items():
            if message.metadata.message_id not in waiting:
                yield key, Message(Error(0, "its message could not be sent; its node may have gone"), reply_to=message)
        yield from self.pull(waiting, self.settings.round_timeout)

    def push(self, messages: Mapping[K, Message]) -> dict[str, K]:
        """Push messages; the keys of those that Flower has taken by message id. It says nothing of the others."""
        taken = set(self.grid.push_messages(list(messages.values()))) - {""}
        ids = {key: message.metadata.message_id for key, message in messages.items()}
        return {message_id: key for key, message_id in ids.items() if message_id in taken}

    def pull(self, waiting: dict[str, K], patience: float) -> Iterator[tuple[K, Message]]:
        """Yield replies to messages as they come within ``patience`` seconds, and strike these off ``waiting``.

        Few are fetched at a time, so that memory does not grow with the number of participants.
        """
        started, over = time.monotonic(), False
        while waiting and not over:
            waited = time.monotonic() - started
            over = waited >= patience
            for some in split(list(waiting), PULLED):
                for reply in self.grid.pull_messages(some):
                    if (asked := reply.metadata.reply_to_message_id) in waiting:  # else it is here twice
                        self.alive(reply)
                        yield waiting.pop(asked), reply
            if waiting and not over:
                time.sleep(min(max(0.02, 0.05 * waited), 1.0))  # look often at first, then each second

    def alive(self, reply: Message) -> None:
        """``RunFailed`` if a process of Ray has died: Flower keeps giving it work, which fails at once."""
        if reply.has_error() and "ActorDied" in (reply.error.reason or ""):
            raise RunFailed(
                "a process of the simulation died, most often because memory ran out; run again with "
                f"{self.run.resuming}; for fewer at once, raise client-resources-num-cpus in the `flwr run` line that "
                "fedapps run prints with --dry-run"
            )


def split(items: list[str], size: int) -> Iterator[list[str]]:
    """Lists of so many at most."""
    return (items[i : i + size] for i in range(0, len(items), size))


def short(reason: str | None) -> str:
    """The telling line of an error that may be a whole traceback, and not too much of it."""
    told = FLOWERS.sub(lambda found: found[2] if "\n" in found[2] else f"{found[1]}: {found[2]}", reason or "")
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return lines[-1][:MOST_SAID] if lines else "no reason given"
