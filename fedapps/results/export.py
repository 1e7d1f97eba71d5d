"""A participant's personal model as files that others can use: safetensors and a model card."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from fedapps.errors import UserError
from fedapps.files import writing
from fedapps.hints import nearest
from fedapps.methods import method
from fedapps.models import build_encoder
from fedapps.models.backbone import merge
from fedapps.results.record import Record, read_record
from fedapps.scenario import Participant
from fedapps.state import Store


def export(path: Path, participant: str, out: Path | None = None) -> Path:
    """Write ``model.safetensors`` and ``README.md`` of a participant's newest personal model; the folder.

    ``out`` defaults to ``export/<participant>`` in the run folder. UserError for an unknown participant, or
    where its state is not in the run folder (in a deployment it stays at the participant's site) or is damaged,
    or where ``out`` cannot be written.
    """
    record = read_record(path)
    if participant not in record.scenario.by_name:
        hint = nearest(participant, record.scenario.by_name)
        raise UserError(f"participant: there is no '{participant}' in {record.scenario.name}{hint}")
    store = Store(record.path / "state" / participant)
    newest = store.newest()
    if newest is None and store.versions():
        raise UserError(f"{store.folder} is damaged: none of its files can be read")
    if newest is None or "model" not in newest[1]:  # some methods keep other things only
        raise UserError(
            f"{store.folder} holds no personal model: the run kept none yet, or its method averages whole models (they "
            "are in checkpoint/), or it is of a comparison, which keeps numbers alone, or it ran on SuperNodes, where "
            "personal state stays in their own state-dir"
        )
    folder = (out or record.path / "export" / participant).expanduser().absolute()
    (server_round, _), state = newest
    with writing("export", folder):
        folder.mkdir(parents=True, exist_ok=True)
        save_file(_whole(record, participant, state["model"]), folder / "model.safetensors")
        (folder / "README.md").write_text(model_card(record, participant, server_round), encoding="utf-8")
    return folder


FROZEN = ("lora", "frozen")


def _whole(record: Record, participant: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A model's state dict with the frozen nets, which personal state leaves out, and their adapters merged in."""
    spec = record.scenario.by_name[participant]
    for modality, model in spec.model.items():
        if any(option in model.options for option in FROZEN):
            prefix = f"encoders.{modality}."
            encoder = build_encoder(modality, model.name, record.scenario.dim, **model.options)
            encoder.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
            merge(encoder)
            rest = {name: tensor for name, tensor in state.items() if not name.startswith(prefix)}
            state = rest | {prefix + name: tensor for name, tensor in encoder.state_dict().items()}
    return state


def model_card(record: Record, participant: str, server_round: int) -> str:
    """The model card, in Markdown."""
    spec, entry = record.scenario.by_name[participant], method(record.algo)
    evaluations = record.evaluations(participant)
    last = evaluations[max(evaluations)] if evaluations else None
    label = f", label {spec.data.label}" if spec.data.label else ""
    versions = ", ".join(f"{name} {number}" for name, number in record.about["versions"].items())
    lines = [
        "---",
        "library_name: fedapps",
        "tags: [federated-learning]",
        "---",
        "",
        f"# {participant} of {record.path.name}",
        "",
        "The personal model of one participant of a federation.",
        "",
        "| | |",
        "|---|---|",
        f"| method | {entry.title} ({entry.paper}) |",
        f"| scenario | {record.scenario.name}: {record.scenario.description} |",
        f"| task | {spec.task.name} ({spec.modality}) |",
        f"| data | {spec.data.name}{label}, partition {spec.data.partition} |",
        f"| seed | {record.about['seed']} |",
        f"| state after round | {server_round} |",
        f"| run | {record.about['started']} to {record.about['ended']}, {record.about['status']} |",
        f"| versions | {versions} |",
        "",
        "## Test metrics",
        "",
        *(_metrics(last) if last else ["The participant was not evaluated."]),
        "",
        "They are those of the participant as its method evaluates it. Where the method adds modules at test time",
        "(FedAFD: the global encoders and the fusion), `local_…` are those of this model alone.",
        "",
        "## Use",
        "",
        "`model.safetensors` holds the encoders (`encoders.<modality>.…`) and the head (`head.…`).",
        "",
        "```python",
        *_usage(spec, record.scenario.dim),
        "```",
        "",
    ]
    return "\n".join(lines)


def _metrics(row: dict) -> list[str]:
    return [
        f"After round {row['round']}, on {row.get('num_examples', 'an unknown number of')} test examples:",
        "",
        "| metric | value |",
        "|---|---|",
        *(f"| {name} | {value:.4f} |" for name, value in row["metrics"].items()),
    ]


def _usage(spec: Participant, dim: int) -> list[str]:
    """Python lines that build the first encoder and load it."""
    modality = spec.modalities[0]
    model = spec.model[modality]
    kept = {name: value for name, value in model.options.items() if name not in FROZEN}
    if len(kept) < len(model.options) and modality == "image":
        kept["pretrained"] = False  # the file has all weights
    options = "".join(f", {name}={value!r}" for name, value in kept.items())
    return [
        "from safetensors.torch import load_file",
        "from fedapps.models import build_encoder",
        "",
        'state = load_file("model.safetensors")',
        f'encoder = build_encoder("{modality}", "{model.name}", {dim}{options})',
        f'prefix = "encoders.{modality}."',
        "encoder.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})",
    ]
