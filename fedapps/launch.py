"""Starting Flower: one run as ``flwr run`` in a subprocess, sized to this machine, followed to its end."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedapps.errors import UserError
from fedapps.files import lock, writing
from fedapps.scenario import Scenario
from fedapps.settings import Settings, keys

STARTED = re.compile(r"Successfully started run (\d+)")
STARTING = 120.0
"""Seconds to wait for another run that is being started. Two at once would each start a SuperLink, on one port."""

UNSENDABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # control characters, bytes that are no UTF-8


def app_folder() -> Path:
    """The root of the Flower app that this package is imported from; ``UserError`` where it is none."""
    root = Path(__file__).resolve().parents[1]
    file = root / "pyproject.toml"
    if not file.is_file() or "flwr" not in tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}):
        raise UserError(
            f"fedapps is imported from {root}, which is no Flower app (no pyproject.toml); install it from a "
            "clone with `pip install -e .`"
        )
    return root


def undeclared_keys() -> list[str]:
    """Keys of settings and methods that pyproject lacks: Flower refuses a run-config with any of them."""
    app = tomllib.loads((app_folder() / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    tables = {key: value for key, value in app["config"].items() if isinstance(value, dict)}
    declared = set(app["config"]) - set(tables) | {f"{name}.{key}" for name, table in tables.items() for key in table}
    return sorted(set(keys()) - declared)


def check_declared() -> None:
    """``UserError`` with what to write where, if a new method's keys are not in pyproject."""
    for key in undeclared_keys():
        table, _, name = key.rpartition(".")
        where = f"tool.flwr.app.config.{table}" if table else "tool.flwr.app.config"
        raise UserError(f'pyproject.toml: [{where}] lacks {name} = "auto", without which Flower refuses {key}')


def flwr_home() -> Path:
    return Path(os.environ.get("FLWR_HOME") or "~/.flwr").expanduser().absolute()


def superlink_log() -> Path:
    """Where the local SuperLink, which runs the ServerApp, writes."""
    return flwr_home() / "local-superlink" / "superlink.log"


def environment() -> dict[str, str]:
    """The environment of ``flwr``: this Python's commands on PATH, no telemetry, no look for updates."""
    env = dict(os.environ)
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    env.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    env.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    env.setdefault("UV_CACHE_DIR", str(flwr_home() / "uv-cache"))  # of Flower's `uv sync`; HOME may not be writable
    env.setdefault("PYTHONUNBUFFERED", "1")  # lines arrive as they are written
    return env


def command(config: Mapping[str, Any], settings: Settings, scenario: Scenario) -> list[str]:
    """The ``flwr run`` line of a checked run-config."""
    check_declared()
    return [
        *("flwr", "run", str(app_folder())),
        *("--run-config", toml(config)),
        *("--federation-config", toml(federation(settings, scenario))),
        "--stream",
    ]


def federation(settings: Settings, scenario: Scenario) -> dict[str, Any]:
    """As many SuperNodes as work at the same time: one for ``scenario.threads`` CPUs, no more than participants.

    They share the GPUs evenly. A node hosts several participants where there are more.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    each = min(scenario.threads, cpus)
    nodes = max(1, min(cpus // each, len(scenario.by_name)))
    found: dict[str, Any] = {
        "num-supernodes": nodes,
        "client-resources-num-cpus": each,
        "client-resources-num-gpus": 0,
        "init-args-num-cpus": nodes * each,
    }
    gpus = torch.cuda.device_count() if settings.device != "cpu" and torch.cuda.is_available() else 0
    if gpus:
        share = math.floor(100 * gpus / nodes) / 100  # rounded down: the shares must fit
        found |= {"client-resources-num-gpus": min(share, 1), "init-args-num-gpus": gpus}
    return found


def toml(values: Mapping[str, Any]) -> str:
    """``key=value`` pairs as ``flwr run`` reads them: TOML, each text in quotes that it does not hold itself."""
    return " ".join(f"{key}={_toml_value(key, value)}" for key, value in values.items())


def _toml_value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    if UNSENDABLE.search(value):
        raise UserError(f"{key}: Flower takes no text with line breaks or other control characters")
    literal = '"' in value or "\\" in value  # a text in single quotes stands as it is
    if literal and "'" in value:
        raise UserError(f"{key}: Flower takes no text with both kinds of quotes, or with \\ and a single quote")
    return f"'{value}'" if literal else f'"{value}"'


def follow(line: list[str], show: Callable[[str], None]) -> int:
    """Run ``flwr`` and hand each line of its output to ``show``; its exit code.

    On Ctrl-C or SIGTERM the Flower run is stopped, then KeyboardInterrupt is raised. The working directory is
    Flower's own: Flower's workers would import the app from the one in which the local SuperLink was started.
    """
    env, home = environment(), flwr_home()
    flwr = shutil.which("flwr", path=env["PATH"])
    if flwr is None:
        raise UserError("there is no `flwr` command beside this Python; install the app with `pip install -e .`")
    with writing("FLWR_HOME", home, "; name another with FLWR_HOME=<folder> in the environment"):
        home.mkdir(parents=True, exist_ok=True)
    starting = lock("FLWR_HOME", home, f"{home}: another run is being started", STARTING)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    process = subprocess.Popen(
        [flwr, *line[1:]],
        env=env,
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches this process alone
    )
    run_id = None
    try:
        assert process.stdout is not None
        for text in process.stdout:
            if found := STARTED.search(text):
                run_id = found[1]
                starting.close()
            show(text.rstrip("\r\n"))
        return process.wait()
    except KeyboardInterrupt:
        if run_id is not None:
            subprocess.run([flwr, "stop", run_id], env=env, cwd=home, start_new_session=True, timeout=60)
        raise
    finally:
        starting.close()
        process.terminate()
        process.wait()
        signal.signal(signal.SIGTERM, before)


def recorded(folder: Path) -> str:
    """The text of ``run.json`` in a run folder; empty where there is none."""
    file = folder / "run.json"
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def outcome(folder: Path, before: str = "") -> tuple[str, str | None]:
    """Status and reason in ``run.json``; ``("missing", None)`` where a run did not change what was there before."""
    text = recorded(folder)
    if text == before:
        return "missing", None
    about = json.loads(text)
    return about["status"], about["reason"]
