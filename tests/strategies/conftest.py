"""A federation in which nearly everything differs."""

from pathlib import Path

import pytest

MIXED = """
dim: 8
settings: {num-server-rounds: 2}
participants:
  - &image
    name: a
    count: 2
    modality: image
    task: classification
    model: {name: cnn, width: 4}
    unit: false
    data: {name: emoji, label: group, partition: pathological, classes: 2, size: 24, test-size: 40}
    train: &train {learning-rate: 0.003, batch-size: 16}
  - {<<: *image, name: b, count: 1, model: {name: cnn, width: 6}}
  - {<<: *image, name: c, count: 1, data: {name: emoji, label: vendor, size: 24, test-size: 40}}
  - &text
    name: t
    count: 2
    modality: text
    task: classification
    model: {name: bag, buckets: 64}
    data: {name: glosses, label: label, partition: dirichlet, alpha: 0.5, size: 24, test-size: 40}
    train: *train
  - {<<: *text, name: u, count: 1, model: {name: bigru}}
"""


@pytest.fixture
def mixed(tmp_path: Path) -> dict:
    """A run-config of pictures and texts, four models, and pictures with two sets of labels: one participant, c, has
    a set to itself."""
    path = tmp_path / "mixed.yaml"
    path.write_text(MIXED)
    return {"scenario": str(path), "results-dir": str(tmp_path / "runs"), "run-name": "r", "seed": 1}
