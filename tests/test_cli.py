"""The command line: words, the `flwr run` line, exit codes, and what each verb prints."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedapps import launch
from fedapps.cli import main, parse_words
from fedapps.contract import Contract, layout
from fedapps.errors import UserError
from fedapps.files import lock
from fedapps.methods import METHODS, Params
from fedapps.results.folder import at_work
from fedapps.scenario import load_scenario
from fedapps.settings import read
from simulations.in_process import run as run_in_process

ROOT = Path(__file__).parents[1]
TINY = "scenario=emoji-tiny"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny scenario."""
    results = tmp_path_factory.mktemp("results")
    return run_in_process({"scenario": "emoji-tiny", "results-dir": str(results), "run-name": "done"})


# ------------------------------------------------------------------------------------------------ words


def test_words(tmp_path: Path) -> None:
    words = ["learning-rate=1e-3", "seed=3", "resume=True", "algo=local", "run-name=2024", "scenario=x/own.yaml"]
    assert parse_words([*words, "fedafd.beta=1"]) == {
        "learning-rate": 1e-3,
        "seed": 3,
        "resume": True,
        "algo": "local",
        "run-name": "2024",
        "scenario": str(tmp_path / "x" / "own.yaml"),
        "fedafd.beta": 1,
    }
    for word in ("5", "true", "1e3"):
        assert parse_words([f"data-path={word}"]) == {"data-path": str(tmp_path / word)}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["seed"], "'seed' is not of the form key=value"),
        (["seed=1", "seed=2"], "seed: is given twice"),
    ],
)
def test_words_that_are_none(words: list[str], line: str) -> None:
    with pytest.raises(UserError) as error:
        parse_words(words)
    assert str(error.value) == line


# -------------------------------------------------------------------------------------- the `flwr` line


def test_dry_run_prints_a_line_to_paste(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", TINY, "--dry-run", "algo=local", "seed=7", "run-name=x", "learning-rate=1e-2"]) == 0
    line = shlex.split(capsys.readouterr().out)
    assert line[:3] == ["flwr", "run", str(ROOT)]
    assert line[3] == "--run-config"
    assert tomllib.loads(line[4].replace(" ", "\n")) == {
        "scenario": "emoji-tiny",
        "algo": "local",
        "seed": 7,
        "run-name": "x",
        "learning-rate": 0.01,
        "results-dir": str(tmp_path / "runs"),
    }
    assert line[5] == "--federation-config"
    assert line[6].startswith("num-supernodes=")
    assert line[7:] == ["--stream"]
    assert not (tmp_path / "runs").exists()


def test_a_default_run_name_tells_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", TINY, "--dry-run", "algo=local", "seed=3"]) == 0
    assert 'run-name="local-emoji-tiny-3-' in capsys.readouterr().out


def test_the_federation_fits_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, scenario = read({"scenario": "emoji-quick"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for cpus, nodes in ((1, 1), (2, 2), (64, 10)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cpus=cpus: set(range(cpus)), raising=False)
        assert launch.federation(settings, scenario) == {
            "num-supernodes": nodes,
            "client-resources-num-cpus": 1,
            "client-resources-num-gpus": 0,
            "init-args-num-cpus": nodes,
        }
    threads = scenario.model_copy(update={"threads": 4})
    assert launch.federation(settings, threads)["num-supernodes"] == 10
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert launch.federation(settings, threads)["client-resources-num-cpus"] == 4
    assert launch.federation(settings, threads)["num-supernodes"] == 1


def test_gpus_are_shared_by_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, scenario = read({"scenario": "emoji-quick"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)), raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    shared = launch.federation(settings, scenario)
    assert shared["client-resources-num-gpus"] == 0.33  # three times that fits into one
    assert shared["init-args-num-gpus"] == 1
    cpu, _ = read({"scenario": "emoji-quick", "device": "cpu"})
    assert launch.federation(cpu, scenario)["client-resources-num-gpus"] == 0


def test_toml_as_flower_reads_it() -> None:
    from flwr.common.config import parse_config_args

    values = {"a": "two words", "b": 'say "x"', "c": "it's", "d": True, "e": 1e-05, "f.g": 3, "h": r"C:\x"}
    assert parse_config_args([launch.toml(values)]) == values
    for text in ("\"'", "C:\\it's"):
        with pytest.raises(UserError, match="a: Flower takes no text with both kinds of quotes"):
            launch.toml({"a": text})
    for text in ("a\nb", "a\tb", "a\x00", "\x7f", "\udc80"):
        with pytest.raises(UserError, match="a: Flower takes no text with line breaks or other control characters"):
            launch.toml({"a": text})


# ------------------------------------------------------------------------------------ wrong input: exit 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["algo=fedadf", TINY], "algo: there is no method 'fedadf' (did you mean 'fedafd'?)"),
        (["scenario=emoji-tinny"], "scenario: there is no scenario 'emoji-tinny' (did you mean 'emoji-tiny'?)"),
        ([TINY, "sed=1"], "unknown key 'sed' (did you mean 'seed'?)"),
        ([TINY, "seed=one"], "seed: must be a valid integer, not 'one'"),
        ([TINY, "resume=true"], "resume: say which run to continue with run-name=<name>"),
        ([TINY, "--algo", "local"], "there is no option --algo; settings are written key=value, see --help"),
        ([TINY, "min-participants=9"], "min-participants: 9 asked, scenario emoji-tiny has 4 participants"),
    ],
)
def test_wrong_input(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: {line}\n")


def test_an_app_that_cannot_be_loaded_is_told_before_flower_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "clients.local", None)
    words = ["algo=local", "scenario=emoji-tiny", f"results-dir={tmp_path}", "run-name=r"]
    assert main(["run", *words]) == 2 and not (tmp_path / "r").exists()
    assert capsys.readouterr().err.startswith("error: clients.local:app cannot be loaded: ModuleNotFoundError: ")


def test_existing_and_missing_run_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs" / "x" / "plots").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "run.json").touch()  # without it there is nothing to continue
    assert main(["run", TINY, "run-name=x"]) == 2
    assert "run-name: " in (error := capsys.readouterr().err)
    assert f"{tmp_path}/runs/x exists already; choose another run-name, or resume=true" in error
    assert main(["run", TINY, "run-name=y", "resume=true"]) == 2
    assert capsys.readouterr().err == f"error: resume: there is no run folder {tmp_path}/runs/y\n"


@pytest.mark.parametrize("results", ["/proc/runs", "file/runs", "n" * 300])
def test_results_dir_that_cannot_be_written(results: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["run", TINY, "run-name=x", f"results-dir={results}"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: results-dir: {tmp_path / results}/x cannot be written: ")


@pytest.mark.parametrize("text", ["[]", "{}", "nothing"])
def test_damaged_run_folders(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "runs" / "x"
    run.mkdir(parents=True)
    (run / "run.json").write_text(text)
    verbs = (["plot", str(run)], ["summary", str(run)], ["export", str(run), "participant=mm-0"])
    for words in (*verbs, ["run", "run-name=x", "resume=true"]):
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        assert err.startswith(f"error: {run} cannot be read as a run folder: run.json: ")


def test_long_names(capsys: pytest.CaptureFixture[str]) -> None:
    name = "n" * 300
    for words in (["run", TINY, f"run-name={name}"], ["run", f"run-name={name}", "resume=true"], ["plot", name]):
        assert main(words) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_out_that_is_a_file(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for words in (["plot", str(finished)], ["export", str(finished), "participant=mm-0"]):
        assert main([*words, "--out", "file"]) == 2
        assert capsys.readouterr().err == f"error: {words[0]}: {tmp_path}/file cannot be written: File exists\n"


def test_flwr_home_that_is_a_file(
    tmp_path: Path, flwr: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    flwr("exit 0")
    (tmp_path / "flwr").touch()
    assert main(["run", TINY, "run-name=x"]) == 2
    error = f"error: FLWR_HOME: {tmp_path}/flwr cannot be written: File exists; name another with FLWR_HOME=<folder> in"
    assert capsys.readouterr().err == f"{error} the environment\n"


def test_resume_takes_over_the_settings(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"results-dir={finished.parent}", "run-name=done", "resume=true"]
    assert main(["run", *words, "num-server-rounds=9", "--dry-run"]) == 0
    line = capsys.readouterr().out
    assert 'scenario="emoji-tiny"' in line and "num-server-rounds=9" in line and "resume=true" in line
    assert main(["run", *words, "seed=2"]) == 2
    assert "resume: seed was 1 in that run and is 2 now; leave it as it was" in capsys.readouterr().err


def test_not_installed_from_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "__file__", str(tmp_path / "site-packages" / "fedapps" / "launch.py"))
    with pytest.raises(UserError, match=r"which is no Flower app .*; install it from a clone"):
        launch.app_folder()


# --------------------------------------------------------------- runs, with a stand-in for `flwr`: exit codes


@pytest.fixture
def flwr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``flwr("shell lines")`` makes those lines the `flwr` command; $RUN is the run folder ``runs/x``."""

    def become(script: str) -> None:
        file = tmp_path / "bin" / "flwr"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\nRUN={tmp_path}/runs/x\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setattr(launch, "environment", lambda: {**os.environ, "PATH": f"{file.parent}:/usr/bin:/bin"})

    return become


def start(capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str], str]:
    code = main(["run", TINY, "run-name=x"])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


def test_a_run_that_finishes(
    finished: Path, tmp_path: Path, flwr: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    flwr(f"mkdir -p $RUN; cp {finished}/*.json* $RUN; printf '\\033[92mINFO\\033[0m : [round 1/2] fine\\n'")
    code, lines, error = start(capsys)
    assert (code, error) == (0, "")
    assert lines[0] == lines[-1] == f"run folder: {tmp_path}/runs/x"
    assert lines[1] == "INFO : [round 1/2] fine"  # no colours where there is no terminal
    table = "\n".join(lines[2:-1])
    for words in ("fedafd on emoji-tiny", "image (1)", "mm (2)", "server", "r1_sum", "up, ", " s a round"):
        assert words in table


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("exit 3", "the run did not start, see the lines above (flwr exit code 3)"),
        ("exit 0", "the run did not start, see the lines above (flwr exit code 0)"),
        (
            """mkdir -p $RUN; echo '{"status": "failed", "reason": "it broke"}' > $RUN/run.json""",
            "the run failed: it broke",
        ),
        (
            """mkdir -p $RUN; echo '{"status": "running", "reason": null}' > $RUN/run.json""",
            "the run ended without a result (flwr exit code 0); run again with resume=true run-name=x results-dir=RUNS",
        ),
    ],
)
def test_a_run_that_does_not(
    script: str, line: str, tmp_path: Path, flwr: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    flwr(script)
    code, lines, error = start(capsys)
    assert code == 1
    assert lines == [f"run folder: {tmp_path}/runs/x"] * 2
    line = line.replace("RUNS", f"{tmp_path}/runs")
    assert error == f"error: {line}; log: {tmp_path}/flwr/local-superlink/superlink.log\n"


def test_a_run_whose_name_another_took_at_the_same_time_says_so(
    finished: Path, tmp_path: Path, flwr: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The results in the folder are those of the other."""
    told = f"run-name: {tmp_path}/runs/x exists already; choose another run-name"
    flwr(f"mkdir -p $RUN; cp {finished}/*.json* $RUN; printf '\\033[91mERROR \\033[0m:     run failed: {told}\\n'")
    code, _, error = start(capsys)
    assert code == 1 and error.startswith(f"error: the run failed: {told}; log: ")


def test_a_run_that_goes_on_when_flower_tells_no_more_of_it(
    tmp_path: Path, flwr: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """As when the local SuperLink is killed: the simulation does not need it."""
    flwr("""mkdir -p $RUN; echo '{"status": "running", "reason": null}' > $RUN/run.json
    flock -F $RUN/.lock sleep 60 > /dev/null 2>&1 & echo $! > $RUN/pid; sleep 0.5; exit 1""")
    code, _, error = start(capsys)
    os.kill(int((tmp_path / "runs" / "x" / "pid").read_text()), signal.SIGTERM)
    assert code == 1 and f"(flwr exit code 1), but it is still going on in {tmp_path}/runs/x; log: " in error


def test_ctrl_c_stops_the_run(
    tmp_path: Path, flwr: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flwr(f"""if [ $1 = stop ]; then echo $2 > {tmp_path}/stopped; exit; fi
    mkdir -p $RUN; echo '{{"status": "running", "reason": null}}' > $RUN/run.json
    echo 'Successfully started run 42'; echo 'INFO : [round 1/2] fine'; exec sleep 60""")

    def interrupt(screen: object, line: str) -> None:
        if "round" in line:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("fedapps.cli.Screen.show", interrupt)
    code, _, error = start(capsys)
    assert (code, error) == (130, "stopped\n")
    assert (tmp_path / "stopped").read_text() == "42\n"
    about = json.loads((tmp_path / "runs" / "x" / "run.json").read_text())
    assert (about["status"], about["reason"]) == ("failed", "stopped by Ctrl-C")


def test_runs_are_started_one_after_the_other(
    tmp_path: Path, flwr: Callable[[str], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no SuperLink is there, each of two would start one; the lock is free again once a run has been started."""
    flwr("""flock -n $FLWR_HOME/.lock true && echo not locked
    echo 'Successfully started run 42'; sleep 0.5
    flock -n $FLWR_HOME/.lock true && echo free""")
    _, lines, _ = start(capsys)
    assert "not locked" not in lines and "free" in lines
    monkeypatch.setattr(launch, "STARTING", 0.2)
    with lock("FLWR_HOME", tmp_path / "flwr", "taken"):
        code, _, error = start(capsys)
    assert code == 2
    assert error == f"error: {tmp_path}/flwr: another run is being started; wait for its end, or stop it\n"


def test_ctrl_c_waits_for_the_run_s_process(
    tmp_path: Path, flwr: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flower lets it go on for a while after it has said that it is stopped; till then it cannot be resumed."""
    flwr("""[ $1 = stop ] && exit
    mkdir -p $RUN; echo '{"status": "running", "reason": null}' > $RUN/run.json
    flock -F $RUN/.lock sleep 2 > /dev/null 2>&1 & sleep 0.3
    echo 'Successfully started run 42'; exec sleep 60""")

    def interrupt(screen: object, line: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("fedapps.cli.Screen.show", interrupt)
    assert start(capsys)[0] == 130
    assert not at_work(tmp_path / "runs" / "x")


# --------------------------------------------------------------------------------------------- other verbs


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("fedafd") and "arXiv 2603.04890" in line and "public data" in line for line in lines)
    needs = {line.split()[0]: line for line in lines}
    assert needs["local"].rstrip().endswith("nothing") and "one model for all" in needs["fedavg"]
    assert "a `shared` model" in needs["fedmrl"] and "a `shared` model" not in needs["fedproto"]
    assert main(["list", "--scenarios"]) == 0
    assert "1 image (classification), 1 text (classification), 2 mm (retrieval)" in capsys.readouterr().out
    assert main(["list", "--keys"]) == 0
    told = capsys.readouterr().out
    lines = [line.split()[:2] for line in told.splitlines()]
    assert "(muscle, pairwise, gramian)" in told
    assert ["num-server-rounds", "10"] in lines and ["fedafd.baa", "true"] in lines and ["device", "auto"] in lines


def test_list_wire_gives_real_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--wire", TINY, "algo=fedafd"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("fedafd")]
    sizes = {tuple(row[1:4]): int(row[-1].replace(",", "")) for row in rows}
    scenario = load_scenario("emoji-tiny")
    settings, _ = read({"scenario": "emoji-tiny"})
    encoders = layout("server encoder", Contract(settings.dump(), scenario.dump(), None, "image-0", 9))
    assert sizes["train", "up", "features"] == 2 * 64 * 16 * 4  # two modalities, P = 64, d = 16, float32
    assert sizes["train", "down", "features"] == 2 * 64 * 16 * 4
    assert sizes["train", "down", "encoder"] == sum(
        torch.empty(shape, dtype=getattr(torch, dtype), device="meta").nbytes for dtype, shape in encoders.values()
    )


def test_list_wire_reads_data_in_data_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    folder = tmp_path / "data" / "own"
    folder.mkdir(parents=True)
    for split, number in (("train", 5), ("test", 2)):
        rows = [{"image": f"{split}{i}.png", "text": f"word {i}"} for i in range(number)]
        for i, row in enumerate(rows):
            Image.new("RGB", (4, 4), (i, 0, 0)).save(folder / row["image"])
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    side = "modality: image-text, task: retrieval, model: {image: cnn, text: bag}"
    (tmp_path / "own.yaml").write_text(
        "dim: 4\npublic: {name: 'path:own'}\nparticipants:\n"
        f"  - {{name: a, {side}, data: {{name: 'path:own'}}}}\n"
        f"server: {{{side}, test: {{name: 'path:own'}}}}\n"
    )
    assert main(["list", "--wire", "scenario=own.yaml", "algo=fedafd", "data-path=data"]) == 0
    assert "[5, 4]" in capsys.readouterr().out  # P = 5 rows, d = 4


def test_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", TINY]) == 0
    assert capsys.readouterr().out == "ok\n"
    assert main(["check", TINY, "seed=one", "fedafd.betta=1", "min-participants=0"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "seed: must be a valid integer, not 'one'",
        "unknown key 'fedafd.betta' (did you mean 'fedafd.beta'?)",
        "min-participants: must be greater than or equal to 1, not 0",
    ]
    pair = ["fedmuscle.wire=grad", "fedmuscle.sync=batch"]
    assert main(["check", "algo=fedmuscle", "scenario=muscle-tiny", *pair]) == 0
    assert capsys.readouterr().out == "ok\n", "keys that need each other"
    assert main(["check", "algo=fedmuscle", "scenario=muscle-tiny", pair[0], "seed=x"]) == 1
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["fedmuscle.wire", "seed"]
    (tmp_path / "own.yaml").write_text("dimm: 3\nparticipants: []\n")
    assert main(["check", "scenario=own.yaml", "algo=fedadf"]) == 1
    algo, *scenario = capsys.readouterr().out.splitlines()
    assert algo.startswith("algo: there is no method 'fedadf'")
    assert [line.split(": ")[:2] for line in scenario] == [
        [f"{tmp_path}/own.yaml:2", "participants"],
        [f"{tmp_path}/own.yaml:1", "dimm"],
    ]


def test_check_finds_what_a_scenario_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = "{name: %s, modality: text, task: classification, model: %s, data: {name: %s, label: label}}"
    parts = "".join(f"  - {part % values}\n" for values in (("a", "bga", "glosses"), ("b", "bag", "glossen")))
    (tmp_path / "own.yaml").write_text(f"participants:\n{parts}")
    assert main(["check", "scenario=own.yaml", "algo=fedafd"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "needs `public` data and a `server` task" in lines[0]
    assert "bga" in lines[1] and "glossen" in lines[2]


def test_plot_summary_export(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(finished), str(finished), "--out", "pictures"]) == 0
    files = [str(tmp_path / "pictures" / name) for name in ("learning.png", "communication.png")]
    assert capsys.readouterr().out.splitlines() == files
    assert all(Path(file).stat().st_size > 10_000 for file in files)
    assert main(["summary", str(finished)]) == 0
    assert "fedafd on emoji-tiny, seed 1, 2 rounds" in capsys.readouterr().out
    assert main(["export", str(finished), "participant=mm-1", "--out", "model"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/model\n"
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["README.md", "model.safetensors"]
    assert main(["export", str(finished)]) == 2
    assert capsys.readouterr().err == "error: export: say whose model with participant=NAME\n"
    assert main(["plot", "nowhere"]) == 2
    assert "nowhere is not a run folder" in capsys.readouterr().err


def test_help_is_there_for_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["run"], ["list"], ["check"], ["plot"], ["summary"], ["export"]):
        with pytest.raises(SystemExit) as end:
            main([*words, "--help"])
        assert end.value.code == 0
        assert "usage: fedapps" in capsys.readouterr().out


def test_quick_answers_do_not_import_torch() -> None:
    code = "import sys, fedapps.cli; fedapps.cli.main(['list']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_keys_that_flower_would_refuse_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A new method's keys must stand in pyproject too."""

    class MineParams(Params):
        weight: float = 0.5

    mine = replace(METHODS["local"], params=MineParams)
    monkeypatch.setitem(METHODS, "mine", mine)
    assert main(["check", "algo=mine", "scenario=emoji-tiny", "run-name=x"]) == 1
    assert '[tool.flwr.app.config.mine] lacks weight = "auto"' in capsys.readouterr().out
    assert main(["run", "algo=mine", "scenario=emoji-tiny", "--dry-run"]) == 2
