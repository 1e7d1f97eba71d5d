"""State on disk: trees come back as they were, versions make a repeated phase repeatable, damage is noticed."""

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from fedapps import state
from fedapps.state import Store, load_tree, save_tree


def trained() -> tuple[torch.nn.Linear, torch.optim.Adam]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_modules_and_optimisers_come_back(tmp_path: Path) -> None:
    model, optimizer = trained()
    save_tree(tmp_path / "a.safetensors", {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    tree = load_tree(tmp_path / "a.safetensors")
    other = torch.nn.Linear(3, 2)
    other_optimizer = torch.optim.Adam(other.parameters())
    other.load_state_dict(tree["model"])
    other_optimizer.load_state_dict(tree["optimizer"])
    for net, opt in ((model, optimizer), (other, other_optimizer)):
        opt.zero_grad()
        net(torch.ones(1, 3)).square().sum().backward()
        opt.step()
    assert torch.equal(model.weight, other.weight)


def test_reloaded_optimiser_moves_the_live_parameters(tmp_path: Path) -> None:
    model, optimizer = trained()
    save_tree(tmp_path / "a.safetensors", optimizer.state_dict())
    optimizer.load_state_dict(load_tree(tmp_path / "a.safetensors"))
    before = model.weight.detach().clone()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(before, model.weight)


def test_plain_values_and_bfloat16(tmp_path: Path) -> None:
    tree = {"n": 3, "f": 0.5, "none": None, "t": (1, "x"), 7: [torch.ones(2, dtype=torch.bfloat16)]}
    save_tree(tmp_path / "a.safetensors", tree)
    got = load_tree(tmp_path / "a.safetensors")
    assert got[7][0].dtype == torch.bfloat16
    assert {k: v for k, v in got.items() if k != 7} == {k: v for k, v in tree.items() if k != 7}


def test_shared_tensors_are_saved(tmp_path: Path) -> None:
    weight = torch.ones(2)
    save_tree(tmp_path / "a.safetensors", {"a": weight, "b": weight, "view": torch.arange(6).view(2, 3).T})
    got = load_tree(tmp_path / "a.safetensors")
    assert torch.equal(got["a"], got["b"]) and torch.equal(got["view"], torch.arange(6).view(2, 3).T)


def test_a_phase_loads_what_was_before_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for version in [(1, 1), (1, 2), (2, 1), (2, 2)]:
        store.save(version, {"at": version})
    assert store.load()["at"] == (2, 2)
    assert store.load(before=(2, 2))["at"] == (2, 1)
    assert store.load(before=(2, 1))["at"] == (1, 2)
    assert Store(tmp_path / "new").load() is None


def test_a_first_phase_that_is_repeated_begins_from_nothing_again(tmp_path: Path) -> None:
    """Not from what it has left itself; only where the store is whole rounds ahead, the oldest is nearest."""
    store = Store(tmp_path)
    for version in [(3, 1), (3, 2)]:
        store.save(version, {"at": version})
    assert store.before((3, 1)) is None and store.before((3, 2)) == ((3, 1), {"at": (3, 1)})
    assert store.before((2, 2)) == ((3, 1), {"at": (3, 1)})


def test_a_tensor_that_is_loaded_keeps_no_other_in_memory(tmp_path: Path) -> None:
    save_tree(tmp_path / "a.safetensors", {"large": torch.ones(1000), "small": torch.ones(2)})
    assert load_tree(tmp_path / "a.safetensors")["small"].untyped_storage().nbytes() == 8


def test_the_last_version_of_the_round_before_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for version in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)]:
        store.save(version, {})
    assert store.versions() == [(2, 2), (3, 1)]


def test_repeating_a_round_drops_what_came_later(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for version in [(1, 1), (2, 1), (2, 2)]:
        store.save(version, {"at": version})
    store.save((2, 1), {"at": "again"})
    assert store.versions() == [(1, 1), (2, 1)]
    assert store.load()["at"] == "again"


def test_a_file_cut_short_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_tree(path, {"w": torch.ones(1000)})
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(SafetensorError):
        load_tree(path)


def test_no_part_file_is_taken_for_a_version(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save((1, 1), {})
    (tmp_path / "r00002-s0001.part").write_bytes(b"half")
    assert store.versions() == [(1, 1)]


def test_a_damaged_version_is_passed_over(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for version in [(1, 1), (2, 1)]:
        store.save(version, {"w": torch.full((500,), float(version[0]))})
    store.path((2, 1)).write_bytes(store.path((2, 1)).read_bytes()[:700])
    version, tree = store.newest() or (None, None)
    assert version == (1, 1) and tree["w"][0] == 1.0


def test_any_wrong_bit_is_noticed(tmp_path: Path) -> None:
    """Also one in the names, the plain values, the types and the shapes."""
    path = tmp_path / "a.safetensors"
    save_tree(path, {"w": torch.ones(2), "n": torch.arange(2), "lr": 0.5, "steps": [1, None]}, "run")
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises((SafetensorError, ValueError)):
            load_tree(path, "run")


def test_a_version_that_cannot_be_read_at_all_is_passed_over(tmp_path: Path) -> None:
    """As on a disk that is failing."""
    store = Store(tmp_path)
    store.save((1, 1), {"at": 1})
    store.path((2, 1)).mkdir()
    assert store.versions() == [(1, 1), (2, 1)] and store.newest() == ((1, 1), {"at": 1})


@pytest.mark.parametrize("metadata", [None, {"about": '{"tree": {"dict": []}, "run": "", "crc32": 0}'}])
def test_a_file_of_another_version_is_passed_over(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save((1, 1), {"at": 1})
    save_file({"0": torch.ones(1)}, store.path((2, 1)), metadata=metadata)
    assert store.newest() == ((1, 1), {"at": 1})


def test_what_others_put_into_its_folder_is_left_alone(tmp_path: Path) -> None:
    """Only halves of its own files are removed; a folder there does not keep it from writing."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "notes.txt").write_text("kept")
    for name in ("r00001-s0001.part", "r00001-s0002.part", ".tmp1234"):
        (tmp_path / name).write_bytes(b"half")
    Store(tmp_path).save((1, 1), {})
    assert {path.name for path in tmp_path.iterdir()} == {"lost+found", "notes.txt", "r00001-s0001.safetensors"}


def test_a_version_that_cannot_be_written_again_is_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object, path: Path, **__: object) -> None:
        path.write_bytes(b"half")
        raise OSError("full")

    store = Store(tmp_path)
    store.save((1, 1), {"at": 1})
    monkeypatch.setattr(state, "save_file", full)
    with pytest.raises(OSError, match="full"):
        store.save((1, 1), {"at": 2})
    assert store.load() == {"at": 1} and len(list(tmp_path.iterdir())) == 1
