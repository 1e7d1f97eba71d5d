"""Settings: a run-config becomes one frozen, checked object.

Precedence: run-config, then the scenario's ``settings``, then the defaults of the method, then those here.
The value ``"auto"`` in a run-config means "not said" (Flower merges pyproject's defaults into every run).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo

from fedapps.errors import UserError
from fedapps.hints import nearest
from fedapps.methods import METHODS, Params, method
from fedapps.scenario import Scenario, load_scenario, reason

AUTO: Final = "auto"
RUN_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"  # what a run may be called: it is the name of a folder


class Settings(BaseModel):
    """Everything that a run depends on, apart from the scenario."""

    model_config = Params.model_config

    algo: str = Field("fedafd", description="the method: see `fedapps list`")
    scenario: str = Field("emoji-quick", description="the scenario: a name (`fedapps list --scenarios`) or a YAML file")
    num_server_rounds: int = Field(10, ge=1, description="rounds")
    local_epochs: int = Field(1, ge=1, description="epochs on private data in a round")
    batch_size: int | None = Field(None, ge=1, description="of all participants; default: what the scenario says")
    learning_rate: float | None = Field(None, gt=0, description="of all participants; default: what the scenario says")
    evaluate_every: int = Field(1, ge=1, description="rounds from one test to the next; the last round has one too")
    seed: int = Field(1, ge=0, lt=2**63, description="of every random draw, the partition of the data included")
    fraction_train: float = Field(
        1.0, gt=0, le=1, description="share of the participants that train in a round, rounded up"
    )
    sample_by: Literal["all", "kind"] = Field("all", description="draw that share of all participants, or of each kind")
    train_only: str | None = Field(
        None, description="modalities whose participants train, e.g. image+text, or none; the others only test"
    )
    min_participants: int = Field(1, ge=1, description="a round with fewer good replies is skipped")
    max_failed_rounds: int = Field(
        3, ge=1, description="so many failed rounds in a row end the run; others are skipped"
    )
    round_timeout: float = Field(
        3600.0, gt=0, description="seconds to wait for participants and for replies of a phase"
    )
    results_dir: str = Field(
        AUTO, description="where run folders lie; auto: ~/.fedapps/runs, with `fedapps run` ./runs"
    )
    run_name: str = Field(AUTO, pattern=f"^{RUN_NAME}$", description="auto: algo-scenario-seed-time")
    resume: bool = Field(False, description="continue the run folder `run-name` from its last checkpoint")
    device: Literal["auto", "cpu", "cuda"] = Field(AUTO, description="auto: a GPU where there is one")
    data_path: str | None = Field(
        None, description="folder of hf: and path: data; on a node its own node config's data-path comes first"
    )
    params: Params = Params()

    def tests(self, server_round: int) -> bool:
        """Whether a round ends with a test."""
        return server_round % self.evaluate_every == 0 or server_round == self.num_server_rounds

    def pools(self, scenario: Scenario) -> Iterator[tuple[list[str], int]]:
        """Whom a round draws from, sorted, and how many of these: of all participants, or of each kind."""
        names = sorted(scenario.by_name)
        kinds = dict.fromkeys(scenario.kind(name) for name in names) if self.sample_by == "kind" else [None]
        for kind in kinds:
            pool = [name for name in names if kind in (None, scenario.kind(name))]
            share = math.ceil(round(self.fraction_train * len(pool), 9))  # 0.07 of 100 is 7.000000000000001
            yield pool, share if self.sample_by == "kind" else max(share, min(self.min_participants, len(pool)))

    def dump(self) -> str:
        """JSON that ``parse`` reads back: what travels to the clients."""
        return self.model_dump_json(by_alias=True, serialize_as_any=True)

    @staticmethod
    def parse(text: str) -> Settings:
        values = json.loads(text)
        values["params"] = method(values["algo"]).params.model_validate(values["params"])
        return Settings.model_validate(values)

    def flat(self) -> dict[str, Any]:
        """Run-config keys and values, the method's keys with its prefix."""
        values = self.model_dump(by_alias=True, exclude={"params"})
        return values | {f"{self.algo}.{k}": v for k, v in self.params.model_dump(by_alias=True).items()}


def fields() -> dict[str, FieldInfo]:
    """Every run-config key of every method, with its type, default and description."""
    found = {info.alias or name: info for name, info in Settings.model_fields.items() if name != "params"}
    for algo, entry in METHODS.items():
        found |= {f"{algo}.{info.alias or name}": info for name, info in entry.params.model_fields.items()}
    return found


def keys() -> dict[str, str]:
    """Every run-config key of every method, with its description."""
    return {key: info.description or "" for key, info in fields().items()}


def is_text(info: FieldInfo) -> bool:
    """Whether a key's value is text, even where it looks like a number."""
    return str in (info.annotation, *get_args(info.annotation)) or get_origin(info.annotation) is Literal


def read(run_config: Mapping[str, Any]) -> tuple[Settings, Scenario]:
    """Check a run-config and the scenario that it names. Raises ``UserError`` with one line."""
    said = {key: value for key, value in run_config.items() if value != AUTO}
    for key in run_config:
        _known(key, "")
    algo = said.get("algo", Settings.model_fields["algo"].default)
    params_class = method(str(algo)).params
    for key in said:
        if "." in key and not key.startswith(f"{algo}."):
            raise UserError(f"{key}: is a key of {key.partition('.')[0]}, and algo is {algo}")
    name = said.get("scenario", Settings.model_fields["scenario"].default)
    scenario = load_scenario(str(name))
    where = f"scenario {scenario.name}: settings: "
    for key in ("algo", "scenario"):
        if key in scenario.settings:
            raise UserError(f"scenario {scenario.name}: settings: {key} cannot be set by a scenario")
    for key in scenario.settings:
        _known(key, where)
    merged = {**_numbers(scenario.settings), **said, "algo": algo, "scenario": name}
    origin = {key: where for key in scenario.settings if key not in said}
    own = {key.removeprefix(f"{algo}."): value for key, value in merged.items() if key.startswith(f"{algo}.")}
    general = {key: value for key, value in merged.items() if "." not in key}
    params = _checked(params_class, own, f"{algo}.", origin)
    settings = _checked(Settings, {**general, "params": params}, "", origin)
    override = {
        key: value
        for key, value in (("learning_rate", settings.learning_rate), ("batch_size", settings.batch_size))
        if value is not None
    }
    return settings, _retrained(scenario, override) if override else scenario


def _known(key: str, where: str) -> None:
    if key not in keys():
        raise UserError(f"{where}unknown key '{key}'{nearest(key, keys())}")


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values from YAML, which reads ``1e-3`` as text: numbers in text become numbers, but for text keys."""
    known = fields()
    return {key: value if is_text(known[key]) else _number(value) for key, value in values.items()}


def _number(value: Any) -> Any:
    for kind in (int, float) if isinstance(value, str) else ():
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _checked(model: type[Any], values: dict[str, Any], prefix: str, origin: Mapping[str, str]) -> Any:
    """``model(**values)``, with its first error as one line; ``origin`` says which keys the scenario set."""
    floats = {
        info.alias or name for name, info in model.model_fields.items() if info.annotation in (float, float | None)
    }
    values = {k: float(v) if k in floats and type(v) is int else v for k, v in values.items()}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        told = reason(first, [])  # where several keys do not go together, it names the one to change
        key, _, told = (str(first["loc"][0]), "", told) if first["loc"] else told.partition(": ")
        raise UserError(f"{origin.get(f'{prefix}{key}', '')}{prefix}{key}: {told}") from error


def _retrained(scenario: Scenario, override: dict[str, Any]) -> Scenario:
    """The scenario with the run-config's learning rate and batch size for every participant."""
    entries = [
        entry.model_copy(update={"train": entry.train.model_copy(update=override)}) for entry in scenario.participants
    ]
    return scenario.model_copy(update={"participants": entries})
