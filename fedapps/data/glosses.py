"""The embedded text set ``glosses``: dictionary definitions of ten kinds of things, from WordNet 3.0."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedapps.data.samples import Samples

FOLDER = Path(__file__).parent / "glosses"
CLASSES = ["artifact", "person", "plant", "animal", "act", "communication", "location", "substance", "food", "body"]


def load(split: str) -> Samples:
    """Columns ``text`` and ``label`` (10 classes); 8,000 train and 2,000 test rows, each class a tenth of them."""
    lines = (FOLDER / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    labels = np.array([CLASSES.index(row["label"]) for row in rows], dtype=np.int64)
    return Samples(len(rows), {"text": [row["text"] for row in rows], "label": labels}, {"label": CLASSES})
