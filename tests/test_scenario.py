"""Scenario files: what they mean, and the line that each mistake gets, with file, line and key."""

from pathlib import Path

import pytest

from fedapps.checks import unmet
from fedapps.errors import UserError
from fedapps.scenario import Scenario, known, load_scenario, mistakes

GOOD = """\
description: for tests
dim: 8
participants:
  - name: image
    count: 2
    modality: image
    task: classification
    model: {name: cnn, width: 4}
    data: {name: emoji, label: group}
  - name: pair
    modality: image-text
    task: {name: retrieval, loss: infonce}
    model:
      image: cnn
      text: bag
    data: {name: emoji}
    train: {learning-rate: 1e-3}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "own.yaml"


def load(file: Path, old: str = "", new: str = "") -> Scenario:
    """``GOOD`` with ``old`` replaced by ``new``."""
    assert old in GOOD
    file.write_text(GOOD.replace(old, new, 1) if old else GOOD)
    return load_scenario(str(file))


def test_meaning(file: Path) -> None:
    scenario = load(file)
    assert scenario.name == "own"
    assert list(scenario.by_name) == ["image-0", "image-1", "pair-0"]
    assert scenario.kind("image-1") == "image"
    assert scenario.by_name["image-0"].model["image"].options == {"width": 4}
    assert scenario.by_name["pair-0"].modalities == ("image", "text")
    assert scenario.by_name["pair-0"].train.learning_rate == 1e-3  # YAML 1.1 reads text
    assert Scenario.parse(scenario.dump()) == scenario


def test_the_scenarios_of_the_app_are_good() -> None:
    assert {"emoji-quick", "emoji-tiny", "fedafd-paper"} <= set(known())
    assert {name: mistakes(name) for name in known()} == {name: [] for name in known()}
    assert all(load_scenario(name).description for name in known())


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("dim: 8", "dim: [8", 3, "not valid YAML"),
        ("dim: 8", "dim: big", 2, "dim: must be a valid integer, not 'big'"),
        ("dim: 8", "dimm: 8", 2, "dimm: unknown key (did you mean 'dim'?)"),
        ("dim: 8", "dim: 8\ndim: 9", 3, "dim: stands here twice"),
        ("count: 2", "cuont: 2", 5, "participants.0.cuont: unknown key (did you mean 'count'?)"),
        ("count: 2", "count: 0", 5, "participants.0.count: must be greater than or equal to 1, not 0"),
        ("    modality: image\n", "", 4, "participants.0.modality: is missing"),
        ("modality: image-text", "modality: audio", 11, "must be 'image', 'text' or 'image-text', not 'audio'"),
        ("label: group}", "lable: group}", 9, "participants.0.data.lable: unknown key (did you mean 'label'?)"),
        ("      text: bag\n", "", 10, "participants.1: model: needs one encoder for each of image, text"),
        ("name: pair", "name: 2nd", 10, "must start with a letter"),
        ("name: pair", "name: image", 1, "participants: two entries have the same name"),
        ("learning-rate: 1e-3", "learning-rate: 0", 17, "participants.1.train.learning-rate: must be greater than 0"),
        ("data: {name: emoji}", "data: {name: emoji, partition: random}", 16, "participants.1.data.partition: must be"),
        ("dim: 8", "server: {}", 2, "server.modality: is missing"),
    ],
)
def test_mistakes(file: Path, old: str, new: str, line: int, words: str) -> None:
    with pytest.raises(UserError) as error:
        load(file, old, new)
    message = str(error.value)
    assert message.startswith(f"{file}:{line}: ")
    assert words in message
    assert "\n" not in message
    assert mistakes(str(file))[0] == message


def test_all_mistakes_of_a_file(file: Path) -> None:
    file.write_text(GOOD.replace("dim: 8", "dim: 0").replace("count: 2", "cuont: 2"))
    assert [line.split(": ")[1] for line in mistakes(str(file))] == ["dim", "participants.0.cuont"]


def test_files_that_are_none(file: Path, tmp_path: Path) -> None:
    file.write_text("- a\n- b\n")
    with pytest.raises(UserError, match=r"own.yaml:1: a scenario is a mapping of keys"):
        load_scenario(str(file))
    file.write_text("")
    with pytest.raises(UserError, match=r"own.yaml:1: a scenario is a mapping of keys"):
        load_scenario(str(file))
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read"):
        load_scenario(str(file))
    with pytest.raises(UserError, match=f"there is no file {tmp_path}/missing.yaml"):
        load_scenario(str(tmp_path / "missing.yaml"))


def test_a_server_needs_public_data(file: Path) -> None:
    server = "server: {modality: image, task: classification, model: cnn, test: {name: emoji, label: group}}"
    with pytest.raises(UserError, match="server: has a task but there is no `public` data to train it on"):
        load(file, "dim: 8", server)


def test_methods_say_why_they_cannot_run_a_scenario(file: Path) -> None:
    assert list(unmet("local", load(file))) == []
    assert list(unmet("fedafd", load(file))) == [
        "FedAFD cannot run scenario own: it needs `public` data and a `server` task on it"
    ]
    server = "server: {modality: image, task: classification, model: cnn, test: {name: emoji, label: group}}"
    scenario = load(file, "dim: 8", f"public: {{name: emoji}}\n{server}")
    assert list(unmet("fedafd", scenario)) == [
        "FedAFD cannot run scenario own: its server must have modality image-text, not image",
        "FedAFD cannot run scenario own: its server's task must be retrieval, not classification",
    ]
    pair = {"image": {"name": "cnn"}, "text": {"name": "bag"}}
    good = scenario.model_dump(by_alias=True, exclude_unset=True)
    good["server"] |= {"modality": "image-text", "task": "retrieval", "model": pair}
    good["participants"][0]["task"] = "segmentation"
    (problem,) = unmet("fedafd", Scenario.model_validate(good))
    assert problem == (
        "FedAFD cannot run scenario own: participants 'image' have task segmentation; it can do classification, "
        "multilabel, retrieval"
    )
