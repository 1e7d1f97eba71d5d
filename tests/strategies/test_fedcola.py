"""FedCola's and FedIoT's averages by hand, and what crosses in whole runs."""

import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from fedapps import wire
from fedapps.errors import UserError
from fedapps.results.export import export
from fedapps.results.folder import read_rows
from fedapps.settings import read
from fedapps.state import Store, load_tree
from simulations.in_process import run
from strategies.base import Reply
from strategies.fedcola import FedCola
from strategies.fediot import FedIoT
from strategies.towers import Towers, moved
from tests.end_to_end.flower import metrics

SIZES = {"image-0": 1, "image-1": 3, "text-0": 2, "mm-0": 6}  # N_I = 4, N_T = 2, N_mm = 6
DELTAS = {"image-0": 1.0, "image-1": 2.0, "text-0": 4.0, "mm-0": 8.0}


def server(kind: type[Towers] = FedCola, dtype: torch.dtype = torch.float32, **config: Any) -> Towers:
    """A server half on cola-tiny whose weights are all 0."""
    settings, scenario = read({"algo": kind.__name__.lower(), "scenario": "cola-tiny", **config})
    made: Any = kind(settings, scenario, None, None)  # type: ignore[arg-type]
    made.classes = {name: 0 if name.startswith("mm") else 3 for name in scenario.by_name}
    made.labels = {name: scenario.kind(name) for name in scenario.by_name}
    made.setup()
    made.theta = {t: {n: torch.zeros_like(w, dtype=dtype) for n, w in θ.items()} for t, θ in made.theta.items()}
    return made


def replies(made: Towers, deltas: dict[str, float], sizes: dict[str, int] = SIZES) -> dict[str, Reply]:
    """Each participant has moved every weight by its delta."""
    return {
        name: Reply(
            {"model": {n: w + delta for n, w in made.theta[made.group[name]].items()}}, {}, sizes[name], 0, 0, None, 0
        )
        for name, delta in deltas.items()
    }


def aggregate(made: Towers, come: dict[str, Reply]) -> None:
    """One round in which these replies come."""

    def ask(phase: str, each: Any, into: Any = None) -> dict[str, Reply]:
        for name, reply in come.items():
            if into:
                into(name, reply)
        return come

    made.ask = ask  # type: ignore[method-assign,assignment]
    made.train({})


def moves(made: Towers, participant: str, modality: str, part: str) -> float:
    """By how much a part of the model of a participant's type has moved: all of it by the same."""
    t = made.group[participant]
    found = [
        w for n, w in made.theta[t].items() if (made.places[t][n].part, made.places[t][n].modality) == (part, modality)
    ]
    assert found and all(torch.equal(w, torch.full_like(w, w.view(-1)[0].item())) for w in found)
    assert len({w.view(-1)[0].item() for w in found}) == 1
    return found[0].view(-1)[0].item()


KINDS = [("image-0", "image"), ("text-0", "text"), ("mm-0", "image"), ("mm-0", "text")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_three_types_by_hand(dtype: torch.dtype) -> None:
    def moved(part: str, **config: Any) -> list[float]:
        made = server(dtype=dtype, **config)
        aggregate(made, replies(made, DELTAS))
        assert all(w.dtype == dtype for θ in made.theta.values() for w in θ.values())
        return [moves(made, who, modality, part) for who, modality in KINDS]

    def rounded(*values: float) -> list[float]:
        return torch.tensor(values, dtype=torch.float64).to(dtype).tolist()

    # image: (1·1 + 3·2 + 6·8) / (4 + 6); text: (2·4 + 6·8) / (2 + 6)
    assert moved("attention") == rounded(5.5, 7, 5.5, 7)
    assert moved("mlp") == moved("norm") == moved("embedding") == rounded(7 / 10, 8 / 8, 48 / 10, 48 / 8)
    assert moved("mlp", **{"fedcola.compensate": False}) == rounded(7 / 4, 4, 8, 8)
    assert moved("attention", **{"fedcola.compensate": False}) == rounded(5.5, 7, 5.5, 7)
    assert moved("attention", **{"fedcola.collab": False}) == rounded(7 / 4, 4, 8, 8)
    assert moved("mlp", **{"fedcola.collab": False}) == rounded(7 / 4, 4, 8, 8)


def test_equal_deltas_move_attention_by_them_and_all_else_by_the_own_types_share() -> None:
    made = server()
    aggregate(made, replies(made, dict.fromkeys(SIZES, 1.0)))
    for (who, modality), share in zip(KINDS, (4 / 10, 2 / 8, 6 / 10, 6 / 8), strict=True):
        assert moves(made, who, modality, "attention") == 1
        for part in ("mlp", "norm", "embedding"):
            assert moves(made, who, modality, part) == pytest.approx(share, rel=1e-6)
    assert moves(made, "image-0", "image", "head") == pytest.approx(0.4, rel=1e-6)
    assert moves(made, "text-0", "text", "head") == 0.25


def test_the_order_of_replies_does_not_matter() -> None:
    one, two = server(), server()
    come = replies(one, DELTAS)
    for reply in come.values():
        for w in reply.records["model"].values():
            w.add_(torch.randn(w.shape))
    aggregate(one, come)
    aggregate(two, dict(reversed(come.items())))
    for t, θ in one.theta.items():
        assert all(torch.allclose(w, two.theta[t][n], rtol=1e-6, atol=1e-7) for n, w in θ.items())


@pytest.mark.parametrize("present", list(product([False, True], repeat=3)))
def test_types_that_are_absent(present: tuple[bool, bool, bool]) -> None:
    there = [kind for kind, here in zip(("image", "text", "mm"), present, strict=True) if here]
    deltas = {name: delta for name, delta in DELTAS.items() if name.partition("-")[0] in there}
    made = server()
    aggregate(made, replies(made, deltas))
    for who, modality in KINDS:
        own, both = ([n for n in deltas if n.partition("-")[0] in kinds] for kinds in ((who[:-2],), (modality, "mm")))
        N = sum(SIZES[n] for n in both)
        wanted = [sum(SIZES[n] * DELTAS[n] for n in names) / N if N else 0 for names in (both, own)]
        assert [moves(made, who, modality, part) for part in ("attention", "mlp")] == pytest.approx(wanted, rel=1e-6)


def test_sequential_is_the_released_codes_interpolation() -> None:
    """Three equal participants count 0.148, 0.222, 0.333, and the old model 0.297."""
    names, shares = ["image-0", "image-1", "mm-0"], []
    for name in names:
        made = server(**{"fedcola.aggregate": "sequential"})
        aggregate(made, replies(made, {n: float(n == name) for n in names}, dict.fromkeys(names, 5)))
        shares.append(moves(made, "image-0", "image", "attention"))
        assert moves(made, "mm-0", "image", "attention") == shares[-1], "in the scenario's order for every type"
    assert [*shares, 1 - sum(shares)] == pytest.approx([0.148, 0.222, 0.333, 0.297], abs=1e-3)


@pytest.mark.parametrize(("aux", "layers"), [("attn", 8), ("mlp", 8), ("all", 16)])
def test_weights_of_the_other_modality(aux: str, layers: int) -> None:
    made: Any = server(**{"fedcola.aux": aux})
    image, text, mm = (made.group[name] for name in ("image-0", "text-0", "mm-0"))
    for t, other in ((image, text), (text, image)):
        W_out = made.auxiliary(t)
        tensors = {id(w) for n, w in made.theta[other].items() if n.endswith("weight")}
        assert len(W_out) == layers and all(id(w) in tensors for w in W_out.values())
    assert made.auxiliary(mm) == {}
    del made.theta[text], made.modalities[text]
    W_out = made.auxiliary(image)
    assert all(w is made.theta[mm][f"encoders.text.{layer}.weight"] for layer, w in W_out.items())
    del made.theta[mm], made.modalities[mm]
    assert made.auxiliary(image) == {}


def test_fediot_by_hand() -> None:
    made = server(FedIoT)
    aggregate(made, replies(made, DELTAS))
    image, text = (7 + 600 * 8) / 604, (8 + 600 * 8) / 602
    for part in ("attention", "mlp", "norm"):
        found = [moves(made, who, modality, part) for who, modality in KINDS]
        assert found == pytest.approx([image, text, image, text], rel=1e-6)
    assert [moves(made, who, modality, "embedding") for who, modality in KINDS] == pytest.approx([7 / 4, 4, 8, 8])


def test_without_its_parts_it_is_fedavg(tiny: dict) -> None:
    config = {**tiny, "scenario": "cola-tiny", "num-server-rounds": 1}
    off = {"fedcola.collab": False, "fedcola.complementary": False}
    fedavg = run({**config, "algo": "fedavg", "run-name": "fedavg"})
    assert metrics(run({**config, "algo": "fedcola", **off})) == metrics(fedavg)
    assert metrics(run({**config, "algo": "fedcola", "run-name": "on"})) != metrics(fedavg)
    assert metrics(run({**config, "algo": "fedprox", "fedprox.mu": 0, "run-name": "prox"})) == metrics(fedavg)


def test_what_crosses(tiny: dict) -> None:
    """Up as much as under FedAvg; down the four linear layers of each block too, from the first round on."""
    config = {**tiny, "scenario": "cola-tiny", "num-server-rounds": 1}
    came: dict[str, Any] = {}

    def look(message, reply):  # type: ignore[no-untyped-def]
        if message.metadata.message_type == "train":
            came.update({key: wire.unpack(value) for key, value in message.content.array_records.items()})
        return reply

    def bytes_of(path: Path) -> dict[str, tuple[int, int]]:
        rows = read_rows(path / "metrics.jsonl")
        return {
            r["participant"]: (r["bytes_up"], r["bytes_down"])
            for r in rows
            if r["phase"] == "train" and r.get("bytes_up")
        }

    cola = bytes_of(run({**config, "algo": "fedcola"}, tamper=look))
    fedavg = bytes_of(run({**config, "algo": "fedavg", "run-name": "fedavg"}))
    for name, (up, down) in cola.items():
        overhead = 0 if name.startswith("mm") else 4 * 4 * 12 * 64**2
        assert up == fedavg[name][0] and 0 <= down - fedavg[name][1] - overhead < 1500  # names and shapes
    for name, other in (("image-0", "text"), ("text-1", "image")):
        for layer, W_out in came[f"{name}/aux"].items():
            assert torch.equal(W_out, came[f"{other}-0/model"][f"encoders.{other}.{layer}.weight"])
    blocks = [came[f"{who}/model"][f"encoders.{m}.tower.blocks.0.attn.qkv.weight"] for who, m in KINDS]
    assert all(torch.equal(block, blocks[0]) for block in blocks), "all towers start from one seed"


DRAWN = [
    ["image-0", "text-0", "mm-0"],
    ["text-0", "text-1", "mm-0"],  # no image: its MLPs stay as they are
    ["image-0", "text-0", "mm-1"],
    ["image-0", "image-1"],  # nobody with text: its towers stay as they are
    ["image-0", "image-1", "text-0"],
]


def rounds(tiny: dict, monkeypatch: pytest.MonkeyPatch, send: str, tamper: Any = None, **more: Any) -> Path:
    """Five rounds with ``fedcola.aux-send``; ``tamper`` sees messages and replies."""
    monkeypatch.setattr(FedCola, "sample", lambda self: DRAWN[self.round - 1])
    config = {"algo": "fedcola", "scenario": "cola-tiny", "num-server-rounds": 5, "evaluate-every": 5, "run-name": send}
    return run({**tiny, **config, "fedcola.aux-send": send, **more}, num_nodes=6, tamper=tamper)


def outcome(path: Path) -> Any:
    """Metrics, and all models of the server to the last bit."""
    theta = load_tree(path / "checkpoint" / "r00005-s0000.safetensors")["theta"]
    return metrics(path), {t: [wire.content_hash(w).tolist() for w in θ.values()] for t, θ in theta.items()}


def bytes_down(path: Path) -> dict[tuple[int, str], int]:
    rows = [row for row in read_rows(path / "metrics.jsonl") if row["phase"] == "train" and row.get("bytes_down")]
    return {(row["round"], row["participant"]): row["bytes_down"] for row in rows}


def test_changes_only_are_the_same_run_with_fewer_bytes(tiny: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rounds(tiny, monkeypatch, "whole")
    changes = rounds(tiny, monkeypatch, "changes")
    assert outcome(changes) == outcome(whole)
    attention, mlp = 4 * 4 * 4 * 64**2, 4 * 4 * 8 * 64**2  # bytes of 4 blocks
    saved = {who: down - bytes_down(changes)[who] for who, down in bytes_down(whole).items()}
    has = {
        (1, "image-0"): attention + mlp,  # nobody has trained yet: W_out is the own weights
        (1, "text-0"): attention + mlp,
        (3, "text-0"): mlp,
        (5, "image-0"): attention + mlp,
        (5, "image-1"): attention + mlp,
    }
    for who, num_bytes in saved.items():
        assert 0 <= has.get(who, 0) - num_bytes < 2500, f"{who}: but for names and hashes"
    kept = Store(changes / "state" / "image-0").load()
    assert kept and {str(w.dtype) for w in kept.values()} == {"torch.float32"}
    assert not list((changes / "state").glob("mm-*/*.safetensors"))
    with pytest.raises(UserError, match="no personal model"):
        export(changes, "image-0")


@pytest.mark.usefixtures("clock")
def test_changes_only_after_a_lost_reply_and_resumed(tiny: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(message: Message, reply: Message) -> Message | None:
        """text-0 gets its message of round 2, and its reply never comes."""
        lost = message.metadata.group_id == "2" and "text-0/metrics" in reply.content
        return None if lost else reply

    lossy: dict[str, Any] = {"round-timeout": 60.0, "tamper": lose}
    whole = rounds(tiny, monkeypatch, "whole", **lossy)
    changes = rounds(tiny, monkeypatch, "changes", **lossy)
    assert outcome(changes) == outcome(whole)
    down, most = bytes_down(changes), bytes_down(whole)
    assert all(down[who] <= most[who] for who in most)
    assert down[3, "text-0"] == most[3, "text-0"], "what it keeps is not known: all is sent"

    def stop(message: Message, reply: Message) -> Message | None:
        """The server dies in round 3, when participants have stored what came in it."""
        if message.metadata.group_id == "3" and "mm-1/metrics" in reply.content:
            raise ConnectionError("gone")
        return lose(message, reply)

    with pytest.raises(ConnectionError):
        rounds(tiny, monkeypatch, "changes", **lossy | {"tamper": stop, "run-name": "again"})
    again = rounds(tiny, monkeypatch, "changes", **{"run-name": "again", "resume": True})
    assert outcome(again) == outcome(whole)
    resumed = bytes_down(again)
    assert resumed[3, "image-0"] == most[3, "image-0"], "after a crash it is not known either"
    assert all(down[who] <= resumed[who] <= most[who] for who in most)


def test_a_round_that_fails_as_all_have_lost_what_they_kept_is_made_up_for(
    tiny: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(message: Message, reply: Message) -> Message:
        if message.metadata.group_id == "2" and "image-0/metrics" in reply.content:
            shutil.rmtree(Path(tiny["results-dir"], "changes", "state", "image-0"))
        return reply

    alone = ["image-0"]  # as nobody else trains, W_out stays as it is
    monkeypatch.setitem(globals(), "DRAWN", [DRAWN[0], alone, alone, alone, DRAWN[4]])
    rows = read_rows(rounds(tiny, monkeypatch, "changes", forget) / "metrics.jsonl")
    assert {(row["round"], row["participant"]) for row in rows if "error" in row} == {(3, "image-0"), (3, "server")}
    assert {row["round"] for row in rows if row["phase"] == "train" and row["participant"] == "image-0"} == {
        1,
        2,
        3,
        4,
        5,
    }


def test_a_participant_that_lost_what_it_kept_gets_it_again(tiny: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(message: Message, reply: Message) -> Message:
        if message.metadata.group_id == "2" and "text-0/metrics" in reply.content:
            shutil.rmtree(tmp / "changes" / "state" / "text-0")
        return reply

    tmp = Path(tiny["results-dir"])
    path = rounds(tiny, monkeypatch, "changes", forget)
    (told,) = [row for row in read_rows(path / "metrics.jsonl") if "error" in row]
    assert (told["round"], told["participant"]) == (3, "text-0")
    assert "has lost the W_out that came before" in told["error"]
    assert bytes_down(path)[5, "text-0"] == bytes_down(path)[2, "text-0"], "all, as when everything has changed"


def test_some_participants_a_round_and_resume(tiny: dict) -> None:
    config = {**tiny, "algo": "fedcola", "scenario": "cola-tiny", "fraction-train": 0.5}
    whole = run({**config, "num-server-rounds": 3, "run-name": "whole"})
    run({**config, "num-server-rounds": 2})
    assert metrics(run({**config, "num-server-rounds": 3, "resume": True})) == metrics(whole)
    assert not [row for row in read_rows(whole / "metrics.jsonl") if "error" in row]


def test_participants_without_samples_move_nothing() -> None:
    made = server()
    aggregate(made, replies(made, {"image-0": 1.0}, {"image-0": 0}))
    assert moves(made, "image-0", "image", "attention") == moves(made, "mm-0", "image", "attention") == 0


def test_means_are_summed_in_float64() -> None:
    new = [torch.tensor([value]) for value in (1e8, 1.0, -1e8)]
    assert moved(torch.zeros(1), new, [1, 1, 1], 3).item() == pytest.approx(1 / 3, rel=1e-6)
