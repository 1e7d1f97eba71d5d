"""Exports and TensorBoard events."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedapps.errors import UserError
from fedapps.models import build_encoder
from fedapps.results.export import export
from fedapps.results.record import read_record
from fedapps.results.tensorboard import write_events
from fedapps.state import Store


def keep(run: Path, participant: str, version: tuple[int, int]) -> dict[str, torch.Tensor]:
    dim = read_record(run).scenario.dim
    state = {f"encoders.image.{k}": v for k, v in build_encoder("image", "cnn", dim).state_dict().items()}
    Store(run / "state" / participant).save(version, {"model": state, "optimizer": {"lr": 0.1}})
    return state


def test_newest_model_and_its_card(fedafd_run: Path) -> None:
    keep(fedafd_run, "image-1", (2, 1))
    newest = keep(fedafd_run, "image-1", (3, 1))
    folder = export(fedafd_run, "image-1")
    assert folder == fedafd_run / "export" / "image-1"
    exported = load_file(folder / "model.safetensors")
    assert exported.keys() == newest.keys()
    assert all(torch.equal(exported[name], newest[name]) for name in newest)
    card = (folder / "README.md").read_text()
    for words in ("# image-1", "FedAFD (CVPR 2026", "by-hand", "classification", "accuracy | 60.0000", "2026-01-01"):
        assert words in card


def test_the_usage_of_the_card_works(fedafd_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(fedafd_run, "image-0", (3, 1))
    folder = export(fedafd_run, "image-0", tmp_path / "out")
    code = (folder / "README.md").read_text().split("```")[1].removeprefix("python\n")
    monkeypatch.chdir(folder)
    exec(code, {})


def test_refusals(fedafd_run: Path) -> None:
    with pytest.raises(UserError, match=r"there is no 'image-2' in by-hand \(did you mean 'image-"):
        export(fedafd_run, "image-2")
    with pytest.raises(UserError, match="holds no personal model"):
        export(fedafd_run, "text-0")


def test_damaged_state(fedafd_run: Path) -> None:
    keep(fedafd_run, "image-1", (2, 1))
    keep(fedafd_run, "image-1", (3, 1))
    store = Store(fedafd_run / "state" / "image-1")
    older, newer = [store.path(version) for version in store.versions()]
    newer.write_bytes(newer.read_bytes()[:100])
    card = (export(fedafd_run, "image-1") / "README.md").read_text()
    assert "state after round | 2" in card  # the newest that can be read
    older.write_bytes(older.read_bytes()[:4])
    with pytest.raises(UserError, match=r"image-1 is damaged: none of its files can be read"):
        export(fedafd_run, "image-1")


@pytest.mark.parametrize("where", ["file", "file/below", "/proc/below"])
def test_out_that_cannot_be_written(where: str, fedafd_run: Path, tmp_path: Path) -> None:
    keep(fedafd_run, "image-1", (3, 1))
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UserError, match=r"^export: .* cannot be written: "):
        export(fedafd_run, "image-1", tmp_path / where)
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(UserError, match=r"^export: .* cannot be written: "):
        export(fedafd_run, "image-1", tmp_path)
    assert (tmp_path / "file").read_text() == "kept"


def test_tensorboard_events(fedafd_run: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_events(fedafd_run)
    write_events(fedafd_run)  # a second time replaces the first
    events = EventAccumulator(str(fedafd_run / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("evaluate/accuracy/image-0")] == [(1, 10), (2, 40), (3, 30)]
