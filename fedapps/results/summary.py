"""``summary.json``: what came out of a run.

Words in it:

- ``final``: the last evaluation; ``best``: the one with the highest primary metric (of the task), round 0
  left out. A participant has its own best round; the best round of a kind is that of its plain mean.
- ``mean``: every participant counts alike; ``mean_by_examples``: every test example counts alike; ``over``: how many
  participants have a metric, where that is not all of their kind (no test data, or it is not defined on them).
- ``delta_percent``: 100 · (metric − local) / local of the primary metric against a Local run, for each
  participant; that of a kind, and of the whole run, is the mean over its participants.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedapps.errors import UserError
from fedapps.files import writing
from fedapps.results.folder import Row, write_json
from fedapps.results.record import MEAN, SERVER, Record, read_record

Values = dict[str, Any]


def summarise(path: Path, local: Path | None = None) -> dict[str, Any]:
    """Write ``summary.json`` into the run folder ``path`` and return it.

    ``local`` is the folder of a Local run of the same scenario. Raises ``UserError`` where a folder cannot be
    read or the runs cannot be compared.
    """
    record = read_record(path)
    summary = _summary(record)
    if local is not None:
        _compare(summary, record, read_record(local))
    with writing("summary", record.path / "summary.json"):
        write_json(record.path / "summary.json", summary)
    return summary


def _summary(record: Record) -> Values:
    parties = {
        name: {
            "kind": kind,
            "metric": record.primary[kind],
            **_final_and_best(record, name, record.primary[kind]),
        }
        for kind, names in record.members.items()
        for name in names
    }
    server = parties.pop(SERVER, None)
    failures = Counter(row["participant"] for row in record.rows if "error" in row)
    for name, values in parties.items():
        mine = [row for row in record.rows if row["participant"] == name]
        values |= {"bytes": _bytes(mine), "seconds": _seconds(mine), "failures": failures[name]}
    return {
        "algo": record.algo,
        "scenario": record.scenario.name,
        "seed": record.about["seed"],
        "rounds": len(record.rounds),
        "kinds": {kind: _kind(record, kind) for kind in record.members if kind != SERVER},
        "server": server,
        "participants": parties,
        "bytes": _bytes(record.rows) | {"per_round": _bytes(record.rows, max(len(record.rounds), 1))},
        "seconds": _times(record),
        "failures": dict(failures),
    }


# ------------------------------------------------------------------------------------------------ metrics


def _final_and_best(record: Record, party: str, metric: str) -> Values:
    """The last and the best evaluation of a participant or the server; ``None`` where there is none."""
    evaluations = record.evaluations(party)
    if not evaluations:
        return {"final": None, "best": None}
    best = _best({r: row["metrics"][metric] for r, row in evaluations.items() if metric in row["metrics"]})
    return {
        which: {"round": r, "metrics": evaluations[r]["metrics"]}
        for which, r in (("final", max(evaluations)), ("best", max(evaluations) if best is None else best))
    }


def _best(values: Mapping[int, float]) -> int | None:
    """The (first) round of the highest value; round 0 counts only where it is all there is."""
    trained = {r: value for r, value in values.items() if r > 0} or values
    return max(trained, key=lambda r: (trained[r], -r)) if trained else None


def _kind(record: Record, kind: str) -> Values:
    """Means over the participants of a kind: of their last evaluations, and at the kind's best round."""
    evaluations = [found for name in record.members[kind] if (found := record.evaluations(name))]
    members = len(record.members[kind])
    about = {"metric": record.primary[kind], "participants": members}
    if not evaluations:
        return about | {"final": None, "best": None}
    newest = max(r for found in evaluations for r in found)
    measured = Counter(r for name in record.members[kind] for r in record.curve(name, record.primary[kind]))
    whole = [r for r, count in measured.items() if count == max(measured.values())]  # rounds that nobody missed
    curve = record.kind_curve(kind)
    best = _best({r: curve[r] for r in whole})
    last = [found[max(found)] for found in evaluations]
    at_best = last if best is None else [found[best] for found in evaluations if best in found]
    return about | {
        "final": {"round": newest, **_means(last, members)},
        "best": {"round": newest if best is None else best, **_means(at_best, members)},
    }


def _means(rows: list[Row], members: int) -> Values:
    counts = Counter(name for row in rows for name in row["metrics"])
    names = list(counts)
    few = {name: count for name, count in counts.items() if count < members}
    return {
        "mean": {name: _mean((row["metrics"][name], 1) for row in rows if name in row["metrics"]) for name in names},
        "mean_by_examples": {
            name: _mean((row["metrics"][name], row.get("num_examples", 0)) for row in rows if name in row["metrics"])
            for name in names
        },
        **({"over": few} if few else {}),
    }


def _mean(weighted: Iterable[tuple[float, float]]) -> float | None:
    """The weighted mean of (value, weight) pairs; ``None`` where no weight is."""
    pairs = list(weighted)
    total = sum(weight for _, weight in pairs)
    return math.fsum(value * weight for value, weight in pairs) / total if total else None


# --------------------------------------------------------------------------------------- bytes and seconds


def _bytes(rows: list[Row], per: int = 1) -> Values:
    """Bytes up and down in some rows, divided by ``per``."""
    totals = {way: sum(row.get(f"bytes_{way}", 0) for row in rows) for way in ("up", "down")}
    return totals if per == 1 else {way: total / per for way, total in totals.items()}


def _seconds(rows: list[Row]) -> float:
    return round(math.fsum(row.get("seconds", 0) for row in rows), 3)


def _times(record: Record) -> Values:
    """Seconds of the whole run (of a resumed one: since it was resumed), of a round on average, and by phase.

    ``phases`` are seconds on the clock, as the server saw them; ``computing`` adds up what the participants
    computed in a phase, at the same time or one after the other.
    """
    started = datetime.fromisoformat(record.about.get("resumed") or record.about["started"])
    ended = record.about["ended"]
    until = datetime.fromisoformat(ended) if ended else datetime.now(UTC)
    phases: dict[str, list[Row]] = {}
    computing: dict[str, list[Row]] = {}
    for row in record.rows:
        if "seconds" in row:
            where = phases if row["participant"] in (MEAN, SERVER) else computing
            where.setdefault(row["phase"], []).append(row)
    rounds = phases.pop("round", [])
    return {
        "total": round((until - started).total_seconds(), 1),
        "per_round": round(_seconds(rounds) / len(rounds), 3) if rounds else None,
        "phases": {phase: _seconds(rows) for phase, rows in phases.items()},
        "computing": {phase: _seconds(rows) for phase, rows in computing.items()},
    }


# ------------------------------------------------------------------------------------------- against Local


def _compare(summary: Values, record: Record, local: Record) -> None:
    """Add ``delta_percent`` to every participant, kind, the server and the whole."""
    if local.algo != "local":
        raise UserError(f"local: {local.path} is a run of {local.algo}, not of local")
    if local.scenario.name != record.scenario.name:
        raise UserError(
            f"local: {local.path} is a run of scenario {local.scenario.name}, not of {record.scenario.name}"
        )
    for what, mine, other in (
        ("seed", record.about["seed"], local.about["seed"]),
        ("rounds", len(record.rounds), len(local.rounds)),
        ("local-epochs", record.about["settings"].get("local-epochs"), local.about["settings"].get("local-epochs")),
    ):
        if mine != other:
            raise UserError(
                f"local: {local.path} has {what} {other}, {record.path.name} has {mine}; compare like with like"
            )
    base = _summary(local)
    parties = summary["participants"]
    for name, values in parties.items():
        values["delta_percent"] = _delta(values, base["participants"].get(name))
    for kind, values in summary["kinds"].items():
        values["delta_percent"] = _mean_delta(values for values in parties.values() if values["kind"] == kind)
    if summary["server"]:
        summary["server"]["delta_percent"] = _delta(summary["server"], base["server"])
    summary["delta_percent"] = _mean_delta(parties.values())
    summary["local"] = {"path": str(local.path), "seed": local.about["seed"]}


def _delta(mine: Values, local: Values | None) -> Values:
    """Δ% of the final and of the best primary metric; ``None`` where one is missing or Local's is zero."""
    found: Values = {}
    for which in ("final", "best"):
        mine_at, local_at = mine[which], local and local[which]
        value = mine_at and mine_at["metrics"].get(mine["metric"])
        base = local_at and local_at["metrics"].get(mine["metric"])
        found[which] = 100 * (value - base) / base if value is not None and base else None
    return found


def _mean_delta(parties: Iterable[Values]) -> Values:
    deltas = [values["delta_percent"] for values in parties]
    return {
        which: _mean((delta[which], 1) for delta in deltas if delta[which] is not None) for which in ("final", "best")
    }
