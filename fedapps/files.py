"""Files and folders: written whole or not at all, with errors for people where they cannot be."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from safetensors import SafetensorError

from fedapps.errors import UserError


@contextmanager
def writing(what: str, path: Path, hint: str = "") -> Iterator[None]:
    """UserError, led by ``what`` and ended by a hint, where ``path`` cannot be written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        told = getattr(error, "strerror", None) or error
        raise UserError(f"{what}: {path} cannot be written: {told}{hint}") from error


def try_folder(path: Path) -> None:
    """Write to a folder, and leave everything as it was; OSError if it cannot be made or written.

    Only a try tells: /proc looks writable to root, and a name may be too long.
    """
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    finally:
        for folder in missing:
            with suppress(OSError):  # it was not made, or another run is using it by now
                folder.rmdir()


def put(part: Path, path: Path) -> None:
    """Give a finished file its name, so that it is there whole or not at all, also after a power failure."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def put_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    put(part, path)


def lock(what: str, folder: Path, taken: str, patience: float = 0) -> IO[str]:
    """A file in ``folder`` that is locked as long as it is open; ``UserError`` where another process has it locked for
    longer than ``patience`` seconds."""
    end = time.monotonic() + patience
    with writing(what, folder):
        file = (folder / ".lock").open("w")
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except BlockingIOError as error:
                if time.monotonic() >= end:
                    file.close()
                    raise UserError(f"{taken}; wait for its end, or stop it") from error
            time.sleep(0.1)
