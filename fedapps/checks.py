"""Everything that can be checked before training: does the method fit the scenario, is the data there?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch

from fedapps.data import Samples, read_once
from fedapps.errors import UserError
from fedapps.holdings import Holdings, num_classes
from fedapps.learner import build_learner, view
from fedapps.methods import Method, method, resolve
from fedapps.scenario import Data, Party, Scenario
from fedapps.settings import Settings


def check(settings: Settings, scenario: Scenario, holdings: Holdings, private: bool = True) -> Method:
    """The method of a run; raises ``UserError`` with the first problem.

    A server does not hold what is private to participants; each node checks its own when it says hello.
    """
    for problem in problems(settings, scenario, holdings, private):
        raise UserError(problem)
    return method(settings.algo)


def problems(settings: Settings, scenario: Scenario, holdings: Holdings, private: bool = True) -> Iterator[str]:
    """One line for each thing that would keep the run from starting."""
    yield from unmet(settings.algo, scenario)
    if private:
        yield from unloadable(settings.algo)
    if settings.min_participants > len(scenario.by_name):
        yield (
            f"min-participants: {settings.min_participants} asked, scenario {scenario.name} has "
            f"{len(scenario.by_name)} participants"
        )
    drawn = sum(count for _, count in settings.pools(scenario))
    if drawn < settings.min_participants <= len(scenario.by_name):
        yield f"min-participants: {settings.min_participants} asked, a round draws {drawn}; raise fraction-train"
    only = settings.train_only
    if only not in (None, "none") and not set(only.split("+")) <= set(scenario.types):
        yield f"train-only: must be none, or some of {', '.join(scenario.types)} with + between, not '{only}'"
    yield from (f"{settings.algo}.{line}" for line in settings.params.problems(scenario, drawn))
    if settings.device == "cuda" and not torch.cuda.is_available():
        yield "device: cuda asked, but torch sees no GPU here; take device=auto or device=cpu"
    found = list(_server_problems(scenario, holdings))
    yield from found
    if found:  # participants hold what public data leave: theirs would be the same problem again
        return
    entries = scenario.participants if private else []
    lines = (participant_problems(scenario, holdings, scenario.names(entry)[0]) for entry in entries)
    yield from dict.fromkeys(chain(*lines))  # entries with the same data have the same problem with them


def unloadable(algo: str) -> Iterator[str]:
    """What Flower and a run will load, and cannot here: a library that it needs is missing or broken."""
    entry = method(algo)
    for path in ("fedapps.server_app:app", "fedapps.client_app:app", entry.strategy, entry.client):
        try:
            resolve(path)
        except UserError as error:
            yield str(error)


def unmet(algo: str, scenario: Scenario) -> Iterator[str]:
    """What a method needs that a scenario does not have."""
    entry = method(algo)
    needs, server = entry.needs, scenario.server
    where = f"{entry.title} cannot run scenario {scenario.name}"
    if needs.public and (scenario.public is None or (needs.server_modalities and server is None)):
        yield f"{where}: it needs `public` data{' and a `server` task on it' if needs.server_modalities else ''}"
        return
    if server is not None and needs.server_modalities and set(server.modalities) != set(needs.server_modalities):
        yield f"{where}: its server must have modality {'-'.join(needs.server_modalities)}, not {server.modality}"
    if server is not None and needs.server_tasks and server.task.name not in needs.server_tasks:
        yield f"{where}: its server's task must be {' or '.join(needs.server_tasks)}, not {server.task.name}"
    yield from (f"{where}: {line}" for line in _unlike_towers(scenario) if needs.towers)
    first = {entry.modality: entry for entry in reversed(scenario.participants)}
    for participant in scenario.participants:
        like = first[participant.modality]
        if needs.same_model and (participant.model, participant.unit) != (like.model, like.unit):
            yield (
                f"{where}: it averages whole models, and participants '{participant.name}' have another than "
                f"'{like.name}'; give all the same, or take a method for different models such as fedmrl"
            )
        for modality in participant.modalities if needs.shared else ():
            if modality not in scenario.shared:
                yield f"{where}: `shared` names no {modality} model for participants '{participant.name}' to share"
        if needs.tasks and participant.task.name not in needs.tasks:
            yield (
                f"{where}: participants '{participant.name}' have task {participant.task.name}; it can do "
                f"{', '.join(needs.tasks)}"
            )


def _unlike_towers(scenario: Scenario) -> Iterator[str]:
    """Encoders that are no unified Transformers, or others than those that they are to be averaged with."""
    first: dict[str, Any] = {}
    sizes: dict[str, str] = {}
    for participant in scenario.participants:
        for modality, spec in participant.model.items():
            who = f"participants '{participant.name}'"
            if spec.name != "unified":
                yield f"it averages unified Transformers, and {who} have the {modality} model {spec.name}"
            elif spec != first.setdefault(modality, spec):
                yield f"it averages the {modality} models of all types, and {who} have another; give all the same"
            else:
                sizes.setdefault(str(spec.options.get("size", "tiny")), f"{who} have {modality} models of size")
    if len(sizes) > 1:
        told = ", ".join(f"{who} {size}" for size, who in sizes.items())
        yield f"towers of both modalities must have one size: {told}"


def _server_problems(scenario: Scenario, holdings: Holdings) -> Iterator[str]:
    """Missing public data, unknown models, tasks and options of the server."""
    public, server = scenario.public, scenario.server
    if public is None:
        return
    found = list(_error("public", lambda: holdings.public_hash))  # for which they are read
    if not found and len(holdings.public) < 2:
        found = ["public: 1 sample is nothing to compare by; take a larger `size`"]
    if server is not None and not found:
        found = list(_error("server", lambda: _try_server(scenario, holdings)))
    yield from found


def _try_server(scenario: Scenario, holdings: Holdings) -> None:
    public, server = scenario.public, scenario.server
    assert public is not None and server is not None
    view(holdings.public, server, public, torch.device("cpu"))
    _try(holdings.server_test, server, server.test)
    if not len(holdings.server_test):
        raise UserError(f"server: test: {server.test.name} has no test rows")
    label = server.test.label
    if label is not None and holdings.public.classes.get(public.label or "") != holdings.server_test.classes[label]:
        raise UserError(f"server: test.label {label} has other classes than public.label {public.label}")
    build_learner(server, scenario.dim, num_classes(holdings.server_test, server.test), "check")


def participant_problems(scenario: Scenario, holdings: Holdings, name: str) -> Iterator[str]:
    """Missing data, empty partitions, unknown models, tasks and options of a participant."""
    spec = scenario.by_name[name]

    def load() -> None:
        for samples in (holdings.train(name), holdings.test(name)):
            _try(samples, spec, spec.data)
        build_learner(spec, scenario.dim, holdings.num_classes(name), "check")
        if scenario.public is not None:
            for modality in spec.modalities:
                column = scenario.public.text if modality == "text" else "image"
                if column not in holdings.public:
                    raise UserError(f"public: {scenario.public.name} has no column '{column}' for {modality}")

    yield from _error(f"participants: {spec.name}", load)


def _try(samples: Samples, party: Party, data: Data) -> None:
    """Take ``samples`` as the party does, and read all of its pictures."""
    view(samples, party, data, torch.device("cpu"))
    decoded = ["image"] if "image" in party.modalities else []
    read_once(samples, *decoded, *([data.label] if data.label else []))


def _error(where: str, action: Callable[[], Any]) -> Iterator[str]:
    """What keeps ``action`` from going through, as one line that starts with where it is set."""
    try:
        action()
    except UserError as error:
        text = str(error)
        yield text if text.startswith(where.partition(":")[0]) else f"{where}: {text}"
    except Exception as error:  # of data and models that are the user's own
        yield f"{where}: {type(error).__name__}: {' '.join(str(error).split())}"
