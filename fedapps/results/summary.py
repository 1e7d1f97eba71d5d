"""``summary.json``: what came out of a run."""

from __future__ import annotations

from pathlib import Path


def summarise(path: Path) -> None:
    """Placeholder replaced below."""
