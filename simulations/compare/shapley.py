"""``shapley=true``: what each type of participants adds to the metric of the federation, as its Shapley value.

A type is a modality. v(S), the value of a coalition S of types, is the final metric of a run in which only participants
of these types train. All else is as in the whole federation: who holds and tests what, who is drawn in a round and
where models start. So image–text participants test the model that image and text participants alone have moved, and
v(none) is what there is before anybody has trained; a server's own training on public data is no type's doing.

Shapley, "A value for n-person games", 1953. FedCola (ECCV 2024, arXiv 2404.12467) has image–text participants train
always, and values images and texts alone: that game is the coalitions with image–text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import factorial, fsum

from fedapps.errors import UserError
from fedapps.scenario import Scenario

Coalition = frozenset[str]

MOST = 6  # types: 64 runs of each method and seed
TABLE, LEFT = "Shapley value by type", "v(all) − v(none) − Σφ"


def shapley(v: Mapping[Coalition, float]) -> dict[str, float]:
    """φ_i = Σ_{S ∌ i} |S|! (k - |S| - 1)! / k! · (v(S ∪ {i}) - v(S)); ``v`` has all 2^k coalitions of k players."""
    everybody = max(v, key=len)
    k = len(everybody)
    weights = [factorial(size) * factorial(k - size - 1) / factorial(k) for size in range(k)]
    return {i: fsum(weights[len(S)] * (v[S | {i}] - v[S]) for S in v if i not in S) for i in sorted(everybody)}


def coalitions(types: Sequence[str]) -> list[Coalition]:
    """All 2^k, from nobody to everybody; ``UserError`` for too many."""
    if len(types) > MOST:
        raise UserError(f"shapley: {MOST} types are the most, not {len(types)}: each method and seed runs 2^k times")
    return [frozenset(chosen) for size in range(len(types) + 1) for chosen in combinations(types, size)]


def in_words(coalition: Coalition) -> str:
    """``image+text``: as ``train-only`` has it."""
    return "+".join(sorted(coalition)) or "none"


def players(scenario: Scenario) -> tuple[str, ...]:
    """The types of a scenario; ``UserError`` where they make no game."""
    if len(scenario.types) < 2:
        raise UserError(f"shapley: scenario {scenario.name} has one type, {scenario.types[0]}; it takes two or more")
    if scenario.server is None and "image-text" not in scenario.types:
        raise UserError(
            f"shapley: scenario {scenario.name} has no metric to share out: it takes a `server` task or image-text "
            "participants"
        )
    coalitions(scenario.types)
    return scenario.types


def figures(
    types: Sequence[str], what: str, v: Mapping[Coalition, float | None]
) -> Iterator[tuple[str, str, float | None]]:
    """φ of each type, v of all and of none, and what is left between them; ``None`` where a value is missing."""
    known = {S: value for S in coalitions(types) if (value := v.get(S)) is not None}
    phi = shapley(known) if len(known) == 2 ** len(types) else {}
    every, nobody = known.get(frozenset(types)), known.get(frozenset())
    columns = {f"φ {i}": phi.get(i) for i in types} | {"v(all)": every, "v(none)": nobody, LEFT: None}
    if phi and every is not None and nobody is not None:
        columns[LEFT] = round(every - nobody - fsum(phi.values()), 9) + 0.0  # of -0.0 makes 0.0
    yield from ((f"{TABLE}: {what}", column, value) for column, value in columns.items())
