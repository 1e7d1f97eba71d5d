"""Scenarios: who takes part, with which data, modality, model and task. YAML in, a checked object out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedapps.errors import UserError
from fedapps.hints import nearest

Modality = str
"""``image`` or ``text``."""


class _Part(BaseModel):
    """One block of a scenario file; keys are kebab-case, unknown ones are refused.

    Numbers in quotes are taken as numbers, because YAML 1.1 reads ``1e-3`` as text.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
        validate_by_name=False,
    )


class Data(_Part):
    """Which rows of which data set."""

    name: str = Field(description="emoji, glosses, hf:<id> or path:<file or folder>")
    label: str | None = Field(None, description="label column, e.g. group, subgroup, tags:15, scene")
    text: str = Field("text", description="text column")
    columns: dict[str, str] = Field(default_factory=dict, description="canonical name -> name in the data set")
    image_size: int | None = Field(None, ge=8, description="side in pixels that pictures of hf:/path: are brought to")
    partition: Literal["iid", "dirichlet", "pathological", "natural", "shards", "whole", "own"] = Field(
        "iid", description="over all participants with the same `data`; own: all rows that the participant's node has"
    )
    by: str | None = Field(None, description="column that the partition goes by; default: the label")
    alpha: float = Field(1.0, gt=0, description="concentration of the Dirichlet partition")
    classes: int = Field(2, ge=1, description="classes per participant of the pathological partition")
    shards: int = Field(2, ge=1, description="shards per participant of the shards partition")
    ids: list[str] | None = Field(None, description="values of `by` that natural participants get, in order")
    size: int | None = Field(None, ge=1, description="training rows per participant; default: all of its partition")
    min_size: int = Field(2, ge=1, description="smaller partitions are refused")
    test_size: int | None = Field(None, ge=1, description="test rows; default: all")
    test_on: Literal["own", "all"] = Field(
        "own", description="test rows of the natural participant's own `by` values, or of all: data it has never met"
    )
    one_per: str | None = Field(None, description="keep one row, drawn at random, per value of this column")


class Train(_Part):
    """How a model is trained; what stands here is overridden by the run-config."""

    learning_rate: float = Field(1e-3, gt=0)
    batch_size: int = Field(32, ge=1)
    optimizer: Literal["adam", "adamw", "adamp", "sgd"] = "adam"
    momentum: float = Field(0.9, ge=0, lt=1, description="of sgd")
    weight_decay: float = Field(0.0, ge=0)
    clip: float | None = Field(None, gt=0, description="largest gradient norm")
    schedule: Literal["constant", "cosine"] = Field("constant", description="of the learning rate, over the rounds")
    decay: float = Field(1.0, gt=0, le=1, description="factor of the learning rate from one round to the next")
    milestones: list[int] = Field(default_factory=list, description="rounds at which the rate is divided by ten")


class Named(_Part):
    """A task or model by name, with its options."""

    model_config = ConfigDict(**{**_Part.model_config, "extra": "allow"})
    name: str

    @property
    def options(self) -> dict[str, Any]:
        return {key.replace("-", "_"): value for key, value in (self.model_extra or {}).items()}


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Party(_Part):
    """What the server and a participant have in common: a modality, a task, a model."""

    modality: Literal["image", "text", "image-text"]
    task: Named
    model: dict[str, Named] = Field(description="an encoder for each modality")
    unit: bool = Field(
        True,
        description="representations are scaled to unit length and logits by 10; false: neither, as in most papers",
    )
    train: Train = Train()

    _task = field_validator("task", mode="before")(_named)

    @model_validator(mode="before")
    @classmethod
    def _one_model(cls, values: Any) -> Any:
        """``model: cnn`` is short for ``model: {image: cnn}`` where there is one modality."""
        if isinstance(values, dict) and values.get("modality") in ("image", "text"):
            model = values.get("model")
            if isinstance(model, str) or (isinstance(model, dict) and "name" in model):
                values = {**values, "model": {values["modality"]: model}}
        if isinstance(values, dict) and isinstance(values.get("model"), dict):
            values = {**values, "model": {key: _named(value) for key, value in values["model"].items()}}
        return values

    @model_validator(mode="after")
    def _encoders(self) -> Party:
        wanted = {"retrieval": ("image-text",), "segmentation": ("image",)}.get(self.task.name, ("image", "text"))
        if self.modality not in wanted:
            raise ValueError(f"task: {self.task.name} needs modality {' or '.join(wanted)}, not {self.modality}")
        if set(self.model) != set(self.modalities):
            raise ValueError(f"model: needs one encoder for each of {', '.join(self.modalities)}")
        return self

    @property
    def modalities(self) -> tuple[Modality, ...]:
        return ("image", "text") if self.modality == "image-text" else (self.modality,)


class Participant(Party):
    """``count`` participants that are alike but for their rows, named ``<name>-0``, ``<name>-1``, …"""

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")
    count: int = Field(1, ge=1)
    data: Data


class Server(Party):
    """The server's own task and model, trained on public data."""

    test: Data
    epochs: int = Field(1, ge=0, description="epochs on public data a round")
    warmup_epochs: int = Field(0, ge=0, description="epochs on public data before the first round")


class Scenario(_Part):
    """One federation."""

    name: str = ""
    description: str = ""
    dim: int = Field(64, ge=2, description="embedding dimension d of every representation")
    threads: int = Field(1, ge=1, le=256, description="torch threads of each process; results depend on it")
    settings: dict[str, Any] = Field(default_factory=dict, description="run-config keys with this scenario's values")
    participants: list[Participant] = Field(min_length=1)
    public: Data | None = None
    server: Server | None = None
    shared: dict[str, Named] = Field(
        default_factory=dict, description="the small model that some methods share, by modality"
    )

    @field_validator("shared", mode="before")
    @classmethod
    def _shared(cls, values: Any) -> Any:
        return {key: _named(value) for key, value in values.items()} if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        names = [entry.name for entry in self.participants]
        if len(set(names)) < len(names):
            raise ValueError("participants: two entries have the same name")
        for name in ("server", "mean"):
            if name in names:
                raise ValueError(f"participants: the name '{name}' is taken by the results")
        if self.server is not None and self.public is None:
            raise ValueError("server: has a task but there is no `public` data to train it on")
        return self

    @cached_property
    def by_name(self) -> dict[str, Participant]:
        """Participant name -> its entry, in the order of the file."""
        return {name: entry for entry in self.participants for name in self.names(entry)}

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The modalities that participants have, in the order of the file."""
        return tuple(dict.fromkeys(entry.modality for entry in self.participants))

    @staticmethod
    def names(entry: Participant) -> list[str]:
        return [f"{entry.name}-{i}" for i in range(entry.count)]

    def kind(self, name: str) -> str:
        """The entry name of a participant: ``image`` for ``image-0``."""
        return self.by_name[name].name

    def dump(self) -> str:
        """JSON that ``parse`` reads back: what travels to the clients."""
        return self.model_dump_json(by_alias=True, exclude_unset=True)

    @staticmethod
    def parse(text: str) -> Scenario:
        return Scenario.model_validate_json(text)


# ------------------------------------------------------------------------------------------ files


def folder() -> Path:
    """The folder of the scenarios that come with the app."""
    return Path(__file__).resolve().parents[1] / "simulations" / "scenarios"


def known() -> list[str]:
    """Names of the scenarios that come with the app."""
    return sorted(path.stem for path in folder().glob("*.yaml"))


def load_scenario(name: str) -> Scenario:
    """A scenario by the name of one that comes with the app, or by the path of a YAML file.

    Raises ``UserError`` with file, line and key for the first thing that is wrong.
    """
    path, text, values = _read(name)
    try:
        return Scenario.model_validate({"name": path.stem, **values})
    except ValidationError as error:
        raise UserError(_explain(error.errors()[0], path, text)) from error


def mistakes(name: str) -> list[str]:
    """A line for everything that ``load_scenario`` objects to; none for a good file."""
    try:
        path, text, values = _read(name)
        Scenario.model_validate({"name": path.stem, **values})
    except UserError as error:
        return [str(error)]
    except ValidationError as error:
        return [_explain(each, path, text) for each in error.errors()]
    return []


def _read(name: str) -> tuple[Path, str, dict[str, Any]]:
    """Path, text and values of a scenario file; ``UserError`` where it is missing or no YAML mapping."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder() / f"{name}.yaml"
    if not path.is_file():
        is_path = "/" in name or path.suffix == ".yml"
        what = f"there is no file {path.absolute()}" if is_path else f"there is no scenario '{name}'"
        raise UserError(f"scenario: {what}{nearest(Path(name).stem, known())}")
    try:
        text = path.read_text(encoding="utf-8")
        values = yaml.safe_load(text)
        twice = _repeated(yaml.compose(text, yaml.SafeLoader))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"scenario: {path} cannot be read: {error}") from error
    except RecursionError as error:
        raise UserError(f"{path}: is nested too deeply, or refers to itself") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise UserError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}:1: a scenario is a mapping of keys such as `participants:`")
    if twice is not None:
        raise UserError(f"{path}:{twice.start_mark.line + 1}: {twice.value}: stands here twice")
    return path, text, values


def _repeated(node: Any) -> Any:
    """The first key node that repeats a key of its mapping, which YAML would silently let win."""
    seen: set[str] = set()
    if isinstance(node, yaml.MappingNode):
        for key, _ in node.value:
            if key.value in seen:
                return key
            seen.add(str(key.value))
    if not isinstance(node, yaml.CollectionNode):
        return None
    nested = [value for _, value in node.value] if isinstance(node, yaml.MappingNode) else node.value
    return next((found for child in nested if (found := _repeated(child)) is not None), None)


def _explain(error: Any, path: Path, text: str) -> str:
    """A validation error as ``file:line: key: what is wrong``."""
    where = [part for part in error["loc"] if not str(part).endswith("()")]
    line = _line(text, where)
    key = ".".join(map(str, where)) or "scenario"
    return f"{path}:{line}: {key}: {reason(error, fields_at(Scenario, where))}"


def reason(error: Any, siblings: list[str]) -> str:
    """One pydantic error in words for people."""
    if error["type"] == "extra_forbidden":
        return f"unknown key{nearest(str(error['loc'][-1]), siblings)}"
    if error["type"] == "missing":
        return "is missing"
    if error["type"] == "string_pattern_mismatch":
        return f"{_name_rule(error['ctx']['pattern'])}, not {error['input']!r}"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ").replace("should", "must")
    message = message.partition(", unable to parse")[0]
    shown = error.get("input")
    return message if isinstance(shown, dict | list) or shown is None else f"{message}, not {shown!r}"


def _name_rule(pattern: str) -> str:
    """The pattern of a name in words."""
    first = "a letter or digit" if pattern.startswith("^[A-Za-z0-9]") else "a letter"
    dot = "'.', " if "." in pattern else ""
    length = ", 200 at most" if "199" in pattern else ""
    return f"must start with {first} and hold only letters, digits, {dot}'_' and '-'{length}"


def fields_at(model: type[BaseModel], where: list[Any]) -> list[str]:
    """The keys that stand beside the last part of ``where``."""
    for part in where[:-1]:
        for key, info in model.model_fields.items():
            if (info.alias or key) == part:
                model = next(iter(_models(info.annotation)), model)
    return [info.alias or key for key, info in model.model_fields.items()]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models(argument)


def _line(text: str, where: list[Any]) -> int:
    """The line of the deepest key or item of ``where`` that stands in the file."""
    node, line = yaml.compose(text, yaml.SafeLoader), 1
    for part in where:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode):
            pair = next(((key, value) for key, value in node.value if key.value == part), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
    return line
