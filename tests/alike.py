"""A federation in which some participants have their labels in common, and public data for all."""

from pathlib import Path
from typing import Any

ALIKE = """
dim: 8
settings: {num-server-rounds: 3, fedhenn.samples: 24}
public: {name: emoji, size: 40, one-per: concept}
participants:
  - &tags
    name: tags
    count: 2
    modality: image
    task: multilabel
    model: {name: cnn, width: 4}
    data: {name: emoji, label: tags:4, size: 24, test-size: 40}
    train: &train {learning-rate: 0.003, batch-size: 16}
  - &group
    name: group
    count: 2
    modality: image
    task: classification
    model: {name: cnn, width: 4}
    data: {name: emoji, label: group, partition: pathological, classes: 3, size: 24, test-size: 40}
    train: *train
  - {<<: *group, name: words, count: 1, modality: text, model: {name: bag, buckets: 64}}
  - {<<: *group, name: vendor, count: 1, data: {name: emoji, label: vendor, size: 24, test-size: 40}}
  - {<<: *tags, name: layers, count: 1, task: segmentation, data: {name: emoji, label: parts, size: 12, test-size: 10}}
  - <<: *group
    name: gloss
    count: 1
    modality: text
    model: {name: bag, buckets: 64}
    data: {name: glosses, label: label, size: 24, test-size: 40}
"""
P = 40  # public samples
TAGS = ["tags-0", "tags-1"]
GROUP = ["group-0", "group-1", "words-0"]  # pictures and words, of one label set
ALONE = ["vendor-0", "layers-0", "gloss-0"]


def alike(folder: Path, **options: Any) -> dict[str, Any]:
    """A run-config of this federation, into ``folder``."""
    path = folder / "alike.yaml"
    path.write_text(ALIKE)
    return {"scenario": str(path), "results-dir": str(folder / "runs"), "run-name": "r", "seed": 1, **options}
