"""FedCola's gates, and FedProx's distance."""

from pathlib import Path
from typing import Any

import pytest
import torch

from clients import fedavg, fedcola, fedprox
from clients.fedcola import completed, fold, gate
from clients.fedprox import distance
from fedapps import wire
from fedapps.errors import UserError
from fedapps.learner import build_optimizer, set_rate
from fedapps.models import build_encoder
from fedapps.models.unified import linears
from fedapps.scenario import Train, folder
from tests.helpers import context, participant

IDS = torch.tensor([[5, 9, 2, 0], [7, 0, 0, 0]])


def gated(dtype: torch.dtype = torch.float32, g: float = 0.0):  # type: ignore[no-untyped-def]
    """An encoder, its representations without gates, and with them."""
    torch.manual_seed(1)
    encoder = build_encoder("text", "unified", 64, buckets=64).to(dtype)
    aux = {name: torch.randn_like(layer.weight) / 8 for name, layer in linears(encoder).items()}
    before, names = encoder.encode(IDS), list(encoder.state_dict())
    gates = gate(encoder, aux, learns=True)
    for each in gates:
        each.g.data.fill_(g)
    return encoder, gates, names, before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_closed_gate_is_the_plain_transformer(dtype: torch.dtype) -> None:
    encoder, gates, _, before = gated(dtype)
    assert len(gates) == 16 and torch.equal(encoder.encode(IDS), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_folded_is_gated(dtype: torch.dtype) -> None:
    encoder, _, names, before = gated(dtype, g=0.3)
    z = encoder.encode(IDS)
    assert z.dtype == dtype and not torch.allclose(z, before, atol=0.05)
    fold(encoder)
    assert torch.equal(encoder.encode(IDS), z)
    assert sorted(encoder.state_dict()) == sorted(names)


def test_gates_learn_first_and_the_other_weights_once_they_are_open() -> None:
    encoder, gates, _, _ = gated()
    encoder.encode(IDS).square().sum().backward()
    assert all(each.g.grad.abs() > 0 for each in gates[:4]) and all(not each.W_out.grad.any() for each in gates)
    opened, gates, _, _ = gated(g=0.1)
    opened.encode(IDS).square().sum().backward()
    assert all(each.W_out.grad.any() for each in gates[:4])


@pytest.mark.parametrize("trains", [True, False])
def test_a_round_of_one_participant(trains: bool, tmp_path: Path) -> None:
    options = {"algo": "fedcola", "scenario": "cola-tiny", "fedcola.aux-trainable": trains}
    model = participant("text-0", tmp_path, **options).model
    aux = {name: torch.randn_like(layer.weight) / 8 for name, layer in linears(model.encoders["text"]).items()}
    records = {"model": model.state_dict(), "aux": aux}
    replies = []
    for _ in range(2):
        me = participant("text-0", tmp_path, records, **options)
        replies.append(fedcola.train(me.message, context()).content)
    up, again = (wire.unpack(reply["model"]) for reply in replies)
    assert {n: w.shape for n, w in up.items()} == {n: w.shape for n, w in model.state_dict().items()}
    assert all(torch.equal(w, again[n]) for n, w in up.items()), "nothing is kept between rounds"
    assert replies[0]["metrics"]["gate"] > 0
    other = {"fedcola.aux-trainable": not trains}
    me = participant("text-0", tmp_path, records, **{**options, **other})
    differs = wire.unpack(fedcola.train(me.message, context()).content["model"])
    assert any(not torch.equal(w, differs[n]) for n, w in up.items())


def test_layers_of_which_only_a_hash_came(tmp_path: Path) -> None:
    options: dict = {"algo": "fedcola", "scenario": "cola-tiny", "fedcola.aux-send": "changes"}
    encoder = participant("text-0", tmp_path, **options).model.encoders["text"]
    own = {name: layer.weight.detach().clone() for name, layer in linears(encoder).items()}
    W_out = {name: torch.randn_like(w) for name, w in own.items()}
    first = next(iter(W_out))

    def got(server_round: int, aux: dict, same: dict) -> dict:
        records = {"aux": aux, "same": {name: wire.content_hash(w) for name, w in same.items()}}
        return completed(participant("text-0", tmp_path, records, server_round=server_round, **options), encoder)

    def alike(one: dict, two: dict) -> bool:
        return one.keys() == two.keys() and all(torch.equal(w, two[name]) for name, w in one.items())

    assert got(1, {}, {}) == {} and not (tmp_path / "state").exists()
    assert alike(
        got(1, {first: W_out[first]}, {n: w for n, w in own.items() if n != first}), own | {first: W_out[first]}
    ), "the own"
    assert alike(got(3, W_out, {}), W_out)
    assert alike(
        got(4, {first: own[first]}, {n: w for n, w in W_out.items() if n != first}), W_out | {first: own[first]}
    )
    assert alike(got(4, {}, W_out), W_out), "a round that is repeated starts from the one before"
    with pytest.raises(UserError, match="text-0 has lost the W_out that came before; it will be sent whole"):
        got(5, {}, {first: W_out[first] + 1})
    for each in gate(encoder, got(5, {}, own), learns=True):
        each.W_out.data += 1
    fold(encoder)  # with gates that are closed
    assert alike({name: layer.weight for name, layer in linears(encoder).items()}, own), "W_out is no view of W"


def test_the_rate_decays_by_round() -> None:
    train = Train.model_validate({"learning-rate": 1e-4, "decay": 0.99})
    optimizer = build_optimizer(train, torch.nn.Linear(1, 1).parameters())
    for server_round, wanted in ((0, 1e-4), (1, 1e-4), (3, 0.9801e-4)):
        set_rate(optimizer, train, server_round, 30)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(wanted)


def test_fedprox_distance() -> None:
    layer = torch.nn.Linear(2, 1)
    w_t = [w.detach().clone() for w in layer.parameters()]
    assert distance(layer, w_t, "l2sq") == 0
    distance(layer, w_t, "l2").backward()
    assert all(w.grad is not None and not w.grad.any() for w in layer.parameters()), "no NaN at the start"
    with torch.no_grad():
        layer.weight += torch.tensor([[3.0, 4.0]])
        layer.bias += 2
    assert distance(layer, w_t, "l2sq").item() == pytest.approx(29) and distance(
        layer, w_t, "l2"
    ).item() == pytest.approx(7)


def edited(tmp_path: Path, old: str, new: str) -> str:
    path = tmp_path / "s.yaml"
    text = (folder() / "cola-tiny.yaml").read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return str(path)


@pytest.mark.parametrize("half", [fedavg, fedprox, fedcola])
def test_a_later_round_has_a_smaller_rate(half: Any, tmp_path: Path) -> None:
    options = {
        "algo": half.__name__.rpartition(".")[2],
        "scenario": edited(tmp_path, "learning-rate: 0.001", "learning-rate: 0.001, decay: 1.0e-6"),
    }
    moved = []
    for server_round in (1, 3):
        start = participant("text-0", tmp_path, **options).model.state_dict()
        me = participant("text-0", tmp_path, {"model": start}, server_round=server_round, **options)
        up = wire.unpack(half.train(me.message, context()).content["model"])
        moved.append(max((w - start[n]).abs().max().item() for n, w in up.items()))
    assert moved[0] > 1e-4 and moved[1] < 1e-7


def test_the_gate_that_is_told_is_the_mean_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[fedcola.Gate] = []
    gate = fedcola.gate
    monkeypatch.setattr(fedcola, "gate", lambda *args: made.extend(gate(*args)) or made)
    options: dict = {"algo": "fedcola", "scenario": "cola-tiny"}
    model = participant("text-0", tmp_path, **options).model
    aux = {name: torch.randn_like(layer.weight) / 8 for name, layer in linears(model.encoders["text"]).items()}
    me = participant("text-0", tmp_path, {"model": model.state_dict(), "aux": aux}, **options)
    told = fedcola.train(me.message, context()).content["metrics"]["gate"]
    sizes = [each.g.item() for each in made]
    assert min(sizes) < 0 < max(sizes) and told == pytest.approx(sum(map(abs, sizes)) / 16)


def test_scalars_of_a_loss_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(fedcola, "local_epochs", lambda me: seen.append(me) or {})
    scenario = edited(tmp_path, "{name: retrieval, loss: infonce, tau: 0.07}", "{name: retrieval, loss: pcme}")
    options = {"algo": "fedcola", "scenario": scenario}
    start = participant("mm-0", tmp_path, **options).model.state_dict()
    fedcola.train(participant("mm-0", tmp_path, {"model": start}, **options).message, context())
    learns = {id(w) for group in seen[0].optimizer.param_groups for w in group["params"]}
    assert list(seen[0].task.parameters()) and {id(w) for w in seen[0].task.parameters()} <= learns


@pytest.mark.parametrize(("norm", "term"), [("l2sq", 8.0), ("l2", 3.0)])
def test_fedprox_adds_half_mu_of_its_norm(
    norm: str, term: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: list[float] = []
    monkeypatch.setattr(fedprox, "task_loss", lambda me, rows: torch.tensor(1.0))
    monkeypatch.setattr(fedprox, "distance", lambda model, w_t, norm: torch.tensor({"l2sq": 8.0, "l2": 3.0}[norm]))
    monkeypatch.setattr(fedprox, "step", lambda loss, *_: losses.append(loss.item()))
    options: dict = {"algo": "fedprox", "scenario": "cola-tiny", "fedprox.mu": 0.5, "fedprox.norm": norm}
    start = participant("text-0", tmp_path, **options).model.state_dict()
    reply = fedprox.train(participant("text-0", tmp_path, {"model": start}, **options).message, context()).content
    assert set(losses) == {1 + 0.25 * term} and reply["metrics"]["task_loss"] == 1
