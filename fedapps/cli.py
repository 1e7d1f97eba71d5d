"""The command ``fedapps``: run, compare, list, check, plot, summary, export."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedapps import settings as run_settings
from fedapps.errors import UserError
from fedapps.hints import nearest
from fedapps.methods import METHODS, Exchange, Needs, Record, method
from fedapps.scenario import Scenario, known, load_scenario, mistakes

# What imports torch is imported where it is needed: `fedapps list` and `--help` answer at once.

ROUND = re.compile(r"\[round (\d+)/(\d+)\] .*, (.*)")
FAILED = re.compile(r"ERROR\s*:\s*run failed: (.*)")
ANSI = re.compile(r"\x1b\[[0-9;]*m")

EPILOG = """\
examples:
  fedapps run algo=fedafd scenario=emoji-quick seed=1
  fedapps run algo=local learning-rate=1e-3 run-name=baseline
  fedapps run resume=true run-name=baseline num-server-rounds=20
  fedapps plot runs/fedafd-1 runs/local-1 --out figures

`fedapps list --keys` names every key. Exit codes: 0 done, 1 failed, 2 wrong input, 130 stopped by Ctrl-C.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. What the user can put right is one ``error:`` line on stderr."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)  # words may stand on both sides of an option
    try:
        args.words = [*getattr(args, "words", []), *_words_only(rest)]
        return args.verb(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `fedapps list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedapps",
        description="Federated learning for participants that differ in data, modality, model and task.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fedapps {version('fedapps')}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = _verb(verbs, "run", _run, "check a run, then start it with Flower and follow it to its end")
    _words(run, "settings, e.g. algo=fedafd scenario=emoji-quick seed=1 (see `fedapps list --keys`)")
    run.add_argument("--dry-run", action="store_true", help="only print the `flwr run` line")

    compare = _verb(verbs, "compare", _compare, "run several methods over several seeds, and print one table")
    _words(
        compare,
        "algos=a,b[b.key=value] seeds=1,2,3 [rival=a] [target=60] [shapley=true], and settings of all, as for run",
    )
    compare.add_argument("--out", type=Path, help="folder for compare.md, .csv and .png (default: that of the runs)")

    listing = _verb(verbs, "list", _list, "name the methods, what each needs and its paper")
    _words(listing, "for --wire: scenario=... algo=...")
    which = listing.add_mutually_exclusive_group()
    which.add_argument("--scenarios", action="store_true", help="name the scenarios and who takes part")
    which.add_argument("--keys", action="store_true", help="name every setting, its default and meaning")
    which.add_argument("--wire", action="store_true", help="name what may cross the wire, with sizes in bytes")

    check = _verb(verbs, "check", _check, "find what would keep a run from starting, one line each")
    _words(check, "settings, as for run")

    plot = _verb(verbs, "plot", _plot, "draw the plots of a run again, or of several runs in one picture")
    plot.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders")
    plot.add_argument(
        "--out", type=Path, help="folder for the pictures (default: plots/ in the run, of several runs plots/ here)"
    )
    plot.add_argument("--tensorboard", action="store_true", help="write TensorBoard events of each run too")

    summary = _verb(verbs, "summary", _summary, "print the results of a run, and write its summary.json again")
    summary.add_argument("run", type=Path, metavar="RUN", help="run folder")
    summary.add_argument("--local", type=Path, metavar="RUN", help="a Local run to compare with (adds Δ%%)")

    export = _verb(verbs, "export", _export, "write a participant's personal model, with a model card")
    export.add_argument("run", type=Path, metavar="RUN", help="run folder")
    _words(export, "participant=NAME")
    export.add_argument("--out", type=Path, help="folder (default: export/NAME in the run folder)")
    return parser


def _verb(verbs: Any, name: str, function: Any, text: str) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.set_defaults(verb=function)
    return parser


def _words(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("words", nargs="*", metavar="key=value", help=text)


# ------------------------------------------------------------------------------------------------ words


def _words_only(rest: Iterable[str]) -> list[str]:
    """Words that argparse left over because an option stood between; UserError for unknown options."""
    rest = list(rest)
    for word in rest:
        if word.startswith("-"):
            raise UserError(f"there is no option {word.partition('=')[0]}; settings are written key=value, see --help")
    return rest


def parse_words(words: Iterable[str]) -> dict[str, Any]:
    """``key=value`` words as a run-config: true/false, whole and decimal numbers, else text.

    The value of a text key stays text (``run-name=2024``), and relative paths become absolute, because the
    run does not happen in this folder.
    """
    fields = run_settings.fields()
    config: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UserError(f"'{word}' is not of the form key=value")
        if key in config:
            raise UserError(f"{key}: is given twice")
        text = key in fields and run_settings.is_text(fields[key])
        config[key] = value if text else _value(value)
    if str(config.get("scenario", "")).endswith((".yaml", ".yml")):
        config["scenario"] = str(Path(config["scenario"]).expanduser().absolute())
    if "data-path" in config:
        config["data-path"] = str(Path(config["data-path"]).expanduser().absolute())
    return config


def _value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


# -------------------------------------------------------------------------------------------------- run


def _run(args: argparse.Namespace) -> int:
    from fedapps import checks, launch
    from fedapps.holdings import Holdings
    from fedapps.results.folder import check_run_folder, default_run_name, run_path

    config = run_config(args.words)
    settings, scenario = run_settings.read(config)
    if "run-name" not in config and not settings.resume:
        config["run-name"] = default_run_name(settings)
        settings, scenario = run_settings.read(config)
    check_run_folder(settings, scenario)
    checks.check(settings, scenario, Holdings(scenario, settings.seed, settings.data_path))
    line = launch.command(config, settings, scenario)
    if args.dry_run:
        print(shlex.join(line))
        return 0

    folder = run_path(settings)
    before = launch.recorded(folder)
    print(f"run folder: {folder}", flush=True)
    try:
        with Screen(settings.num_server_rounds) as screen:
            code = launch.follow(line, screen.show)
    except KeyboardInterrupt:
        _mark_stopped(folder)
        raise
    status, reason = launch.outcome(folder, before)
    if screen.failed and status != "failed":  # what is in the folder is another's, which was begun at the same time
        status, reason = "failed", screen.failed
    if status == "finished":
        _print_results(folder)
    else:
        print(f"error: {_what_failed(folder, status, reason, code)}; log: {launch.superlink_log()}", file=sys.stderr)
    print(f"run folder: {folder}", flush=True)
    return 0 if status == "finished" else 1


def run_config(words: Iterable[str]) -> dict[str, Any]:
    """The run-config of some words: run folders lie in ``runs`` here, and ``resume=true`` takes over the settings
    of the run that is continued."""
    config = {key: value for key, value in parse_words(words).items() if value != run_settings.AUTO}
    config["results-dir"] = str(Path(config.get("results-dir", "runs")).expanduser().absolute())
    folder = Path(config["results-dir"]) / config.get("run-name", "")
    if config.get("resume") is not True or "run-name" not in config or not os.path.isfile(folder / "run.json"):
        return config
    from fedapps.results.record import read_record

    stored = read_record(folder).about["settings"]
    if (algo := config.get("algo", stored["algo"])) != stored["algo"]:
        raise UserError(f"resume: algo was '{stored['algo']}' in that run and is '{algo}' now; leave it as it was")
    return {key: value for key, value in stored.items() if value not in (None, run_settings.AUTO)} | config


def _what_failed(folder: Path, status: str, reason: str | None, code: int) -> str:
    from fedapps.results.folder import at_work, resuming

    if status == "failed":
        return f"the run failed: {reason}"
    if status == "missing":
        return f"the run did not start, see the lines above (flwr exit code {code})"
    if at_work(folder):
        return f"Flower tells no more of the run (flwr exit code {code}), but it is still going on in {folder}"
    return f"the run ended without a result (flwr exit code {code}); run again with {resuming(folder)}"


def _mark_stopped(folder: Path) -> None:
    """Write into ``run.json`` that a run was stopped, unless it could do so itself, and wait for its process: Flower
    lets it train for some seconds more, and until it has ended the run cannot be resumed."""
    from fedapps import launch
    from fedapps.results.folder import at_work, now, write_json

    if launch.outcome(folder)[0] == "running":
        about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        write_json(folder / "run.json", about | {"status": "failed", "reason": "stopped by Ctrl-C", "ended": now()})
        print(f"run folder: {folder}", flush=True)
    end = time.monotonic() + 30
    while at_work(folder) and time.monotonic() < end:
        time.sleep(0.2)


def _print_results(folder: Path) -> None:
    from fedapps.results.table import result_table

    _console().print(result_table(json.loads((folder / "summary.json").read_text(encoding="utf-8"))))


class Screen:
    """Shows the lines of a run: with a progress bar below them on a terminal, else as they come."""

    def __init__(self, num_rounds: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.terminal = sys.stdout.isatty()
        self.bar = Progress(
            *(TextColumn("round"), MofNCompleteColumn(), BarColumn(bar_width=24), TimeElapsedColumn()),
            TextColumn("{task.description}", markup=False),
            disable=not self.terminal,
        )
        self.task = self.bar.add_task("starting Flower", total=num_rounds)
        self.failed: str | None = None  # why the run has failed, as its ServerApp says

    def __enter__(self) -> Screen:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, line: str) -> None:
        plain = ANSI.sub("", line)
        if told := FAILED.match(plain):
            self.failed = told[1]
        if not self.terminal:
            print(plain, flush=True)
            return
        self.bar.console.print(Text.from_ansi(line), soft_wrap=True)
        if found := ROUND.search(plain):
            done, total, to_go = int(found[1]), int(found[2]), found[3]
            self.bar.update(self.task, completed=done, total=total, description=to_go)


def _compare(args: argparse.Namespace) -> int:
    # a room above this one: found late, as the methods are
    return int(importlib.import_module("simulations.compare").compare(args.words, args.out))


# ------------------------------------------------------------------------------------------------- list


def _list(args: argparse.Namespace) -> int:
    table = Table(box=None, pad_edge=False, header_style="bold")
    fill = _scenarios if args.scenarios else _keys if args.keys else _wire if args.wire else _methods
    fill(table, parse_words(args.words))
    _console().print(table)
    return 0


def _methods(table: Table, _: Mapping[str, Any]) -> None:
    _columns(table, "algo", "method", "paper", "needs")
    for algo, entry in METHODS.items():
        table.add_row(algo, entry.title, entry.paper, needs_in_words(entry.needs))


def needs_in_words(needs: Needs) -> str:
    """What a scenario must have for a method."""
    server = " ".join(filter(None, ["-".join(needs.server_modalities), " or ".join(needs.server_tasks)]))
    parts = [
        "public data" if needs.public else "",
        f"a server task ({server})" if server else "",
        f"participants with {', '.join(needs.tasks)}" if needs.tasks else "",
        "one model for all" if needs.same_model else "",
        "a `shared` model" if needs.shared else "",
    ]
    return "; ".join(filter(None, parts)) or "nothing"


def _scenarios(table: Table, _: Mapping[str, Any]) -> None:
    _columns(table, "scenario", "participants", "description")
    for name in known():
        scenario = load_scenario(name)
        who = ", ".join(f"{entry.count} {entry.name} ({entry.task.name})" for entry in scenario.participants)
        table.add_row(name, who, scenario.description)


def _keys(table: Table, _: Mapping[str, Any]) -> None:
    _columns(table, "key", "default", "meaning")
    for key, info in run_settings.fields().items():
        default = "auto" if info.default is None else str(info.default)
        choices = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
        meaning = f"{info.description or ''} ({', '.join(choices)})" if choices else info.description
        table.add_row(key, default.lower() if isinstance(info.default, bool) else default, meaning)


def _wire(table: Table, config: Mapping[str, Any]) -> None:
    """Every record that a method may send, with its size for one participant."""
    _columns(table, "algo", "phase", "way", "record", "tensors", "bytes")
    general = {key: value for key, value in config.items() if "." not in key}
    for algo in [config["algo"]] if "algo" in config else METHODS:
        settings, scenario = run_settings.read(general | {"algo": algo})
        for row in wire_rows(settings, scenario):
            table.add_row(algo, *row)
    table.title = (
        f"What may cross in scenario {scenario.name}, for one participant and phase; one of a single modality "
        "sends only that modality's part, and gets the encoder of it, but the features of both."
    )
    table.title_justify = "left"


def wire_rows(settings: run_settings.Settings, scenario: Scenario) -> Iterator[tuple[str, str, str, str, str]]:
    """(phase, way, record, tensors, bytes) of every record of a method's contract, for the first participant."""
    from fedapps.checks import unmet
    from fedapps.contract import Contract
    from fedapps.holdings import Holdings

    if problem := next(unmet(settings.algo, scenario), None):
        yield "-", "-", "-", problem, "-"
        return
    name = next(iter(scenario.by_name))
    classes = Holdings(scenario, settings.seed, settings.data_path).num_classes(name)
    dumped = scenario.dump()
    contract = Contract(settings.dump(), dumped, settings.data_path, name, classes)
    for phase, exchange in METHODS[settings.algo].wire.items():
        for way, records in _ways(exchange):
            for name, spec in records.items():
                tensors, num_bytes = _record_size(spec, contract.sizes, contract.layouts(records))
                yield phase, way, name, tensors, f"{num_bytes:,}"
        if not exchange.down and not exchange.up:
            yield phase, "-", "-", "nothing but settings and metrics", "0"


def _ways(exchange: Exchange) -> tuple[tuple[str, Mapping[str, Record]], ...]:
    return ("down", exchange.down), ("up", exchange.up)


def _record_size(spec: Record, sizes: Mapping[str, int], layouts: Mapping[str, Any]) -> tuple[str, int]:
    """The tensors of a record in words, and their bytes."""
    import torch

    if isinstance(spec, str):
        layout = layouts[spec]
        num_bytes = sum(math.prod(shape) * getattr(torch, dtype).itemsize for dtype, shape in layout.values())
        return f"{spec}: {len(layout)} tensors", num_bytes
    shapes = {name: [sizes[symbol] for symbol in shape.split()] for name, shape in spec.items()}
    words = ", ".join(f"{name} [{spec[name].replace(' ', ',')}] = {shape} float32" for name, shape in shapes.items())
    return words, 4 * sum(math.prod(shape) for shape in shapes.values())


# ------------------------------------------------------------------------------------------------ check


def _check(args: argparse.Namespace) -> int:
    found = problems(args.words)
    for problem in found:
        print(problem)
    if not found:
        print("ok")
    return 1 if found else 0


def problems(words: Iterable[str]) -> list[str]:
    """A line for everything that keeps a run with these words from starting."""
    from fedapps import checks, launch
    from fedapps.holdings import Holdings
    from fedapps.results.folder import check_run_folder

    config = run_config(words)
    if found := _setting_problems(config):
        return found
    settings, scenario = run_settings.read(config)
    found = list(checks.problems(settings, scenario, Holdings(scenario, settings.seed, settings.data_path)))
    for check in (launch.check_declared, lambda: check_run_folder(settings, scenario)):
        try:
            check()
        except UserError as error:
            found.append(str(error))
    return found


def _setting_problems(config: Mapping[str, Any]) -> list[str]:
    """What ``settings.read`` objects to: in the method and the scenario, else in one other key after the other."""
    found = [] if config.get("algo", "fedafd") in METHODS else [_no_method(config["algo"])]
    found += mistakes(str(config.get("scenario", "emoji-quick")))
    if found:
        keys = run_settings.fields()
        return found + [f"unknown key '{key}'{nearest(key, keys)}" for key in config if key not in keys]
    rest, told = dict(config), {}
    while (line := _objection(rest)) is not None:
        key = next((key for key in rest if line.startswith(f"{key}:") or f"'{key}'" in line), "")
        told[key] = line
        if key in ("", "algo", "scenario"):
            break
        del rest[key]
    return [told[key] for key in ("", *config) if key in told]


def _no_method(algo: Any) -> str:
    try:
        method(algo)
    except UserError as error:
        return str(error)
    return ""


def _objection(config: Mapping[str, Any]) -> str | None:
    try:
        run_settings.read(config)
    except UserError as error:
        return str(error)
    return None


# --------------------------------------------------------------------------- plots, summaries, exports


def _plot(args: argparse.Namespace) -> int:
    from fedapps.results.plots import plot_runs

    out = args.out or (Path("plots") if len(args.runs) > 1 else None)  # a picture of several is none of the first's
    for file in plot_runs(args.runs, out and out.expanduser().absolute()):
        print(file)
    if args.tensorboard:
        from fedapps.results.tensorboard import write_events

        for run in args.runs:
            print(write_events(run))
    return 0


def _summary(args: argparse.Namespace) -> int:
    from fedapps.results.summary import summarise
    from fedapps.results.table import result_table

    _console().print(result_table(summarise(args.run, args.local)))
    return 0


def _export(args: argparse.Namespace) -> int:
    from fedapps.results.export import export

    config = parse_words(args.words)
    if set(config) != {"participant"}:
        raise UserError("export: say whose model with participant=NAME")
    print(export(args.run, str(config["participant"]), args.out))
    return 0


# ---------------------------------------------------------------------------------------------- helpers


def _console() -> Console:
    """Tables as wide as the terminal; wide enough not to break lines where there is none."""
    return Console(width=None if sys.stdout.isatty() else 200)


def _columns(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(name, overflow="fold")


if __name__ == "__main__":
    sys.exit(main())
