"""Calls with options that people wrote: what does not fit is told in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from fedapps.errors import UserError
from fedapps.hints import nearest


def call(what: str, factory: Callable[..., Any], /, **options: Any) -> Any:
    """``factory(**options)``; UserError, led by ``what``, for an unknown, missing or wrong option.

    Names are checked against the factory's signature, values where it is decorated with ``validate_call``.
    """
    signature = inspect.signature(factory)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for name in options:
        if not takes_any and name not in signature.parameters:
            raise UserError(f"{what}: no option '{name}'{nearest(name, set(signature.parameters) - {'dim'})}")
    try:
        signature.bind(**options)
    except TypeError as error:
        raise UserError(f"{what}: {error}") from error
    try:
        return factory(**options)
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(map(str, first["loc"]))
        raise UserError(f"{what}: {option}: {first['msg']}, got {first['input']!r}") from error
