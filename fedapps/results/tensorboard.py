"""The metrics of a run as TensorBoard events."""

from __future__ import annotations

from pathlib import Path

from fedapps.errors import UserError
from fedapps.files import writing
from fedapps.results.record import read_record


def write_events(path: Path) -> Path:
    """Write every metric of ``metrics.jsonl`` as ``<phase>/<metric>/<participant>`` by round; the folder.

    UserError where the ``tensorboard`` package is missing, or the events cannot be written.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError("tensorboard is not installed: pip install 'fedapps[tensorboard]'") from error
    record = read_record(path)
    folder = record.path / "tensorboard"
    with writing("plot", folder):
        for old in folder.glob("events.*"):
            old.unlink()
        with SummaryWriter(str(folder)) as writer:
            for row in record.rows:
                for name, value in row.get("metrics", {}).items():
                    writer.add_scalar(f"{row['phase']}/{name}/{row['participant']}", value, row["round"])
    return folder
