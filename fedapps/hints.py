"""Near-miss hints for names that people type."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the known name nearest to ``word``, else the list of all known names."""
    names = sorted(known)
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else f" (known: {', '.join(names)})"
