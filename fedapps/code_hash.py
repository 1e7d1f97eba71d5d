"""A hash of the app's code: server and clients compare theirs, because Flower may import an older copy."""

from __future__ import annotations

import hashlib
import importlib
from functools import cache
from pathlib import Path


@cache
def code_hash() -> str:
    """SHA-256 over the Python files of the packages as they are imported here."""
    digest = hashlib.sha256()
    for package in ("clients", "fedapps", "strategies"):
        root = folder(package)
        for path in sorted(root.rglob("*.py")):
            if not path.name.startswith("test_") and not path.name.endswith("_test.py"):
                digest.update(f"{package}/{path.relative_to(root).as_posix()}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def folder(package: str) -> Path:
    """The folder that a package of the app is imported from."""
    return Path(str(importlib.import_module(package).__file__)).resolve().parent
