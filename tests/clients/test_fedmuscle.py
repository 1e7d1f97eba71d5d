"""A participant of FedMuscle: what moves in which phase, and that what is sent is learned from."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from clients import fedmuscle, simclr
from clients.base import public_view
from clients.fedmuscle import FedMuscle, align, represent, train
from fedapps import wire
from fedapps.data.views import one_of, random_view
from fedapps.losses import muscle_loss, nt_xent
from fedapps.participant import Participant
from fedapps.seeds import generator
from tests.helpers import context, participant

ROWS = torch.arange(64)[torch.randperm(64, generator=generator("rows"))]


def others(count: int, rows: int = 64) -> dict[str, torch.Tensor]:
    return {str(m): normalize(torch.randn(rows, 16, generator=generator("others", m))) for m in range(count)}


def made(name: str, folder: Path, records: dict | None = None, **options: object) -> Participant:
    words = {"algo": "fedmuscle", "scenario": "muscle-tiny", "server_round": 2, **options}
    return participant(name, folder, records, **words)


def state(me: Participant) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in me.model.state_dict().items()}


@pytest.mark.parametrize("name", ["tags-0", "layers-0", "text-0"])
def test_only_the_representation_model_moves_in_the_contrastive_phase(name: str, tmp_path: Path) -> None:
    muscle = FedMuscle(made(name, tmp_path, {"rows": {"rows": ROWS}, "others": others(2)}))
    before = state(muscle.me)
    found = muscle.contrast()
    after = state(muscle.me)
    moved = {key for key, tensor in after.items() if not torch.equal(tensor, before[key])}
    learned = {f"encoders.{key}" for key, _ in muscle.me.model.encoders.named_parameters()}
    assert moved <= learned and any(key.startswith("encoders.") for key in moved)
    assert not any(key.startswith("head.") for key in moved)
    assert found["tc_bound"] == pytest.approx(2 * math.log(16) - found["contrastive_loss"], abs=1e-4)
    if name != "layers-0":  # its head reads maps, not the projection
        assert moved == learned


def test_a_contrastive_step_by_hand(tmp_path: Path) -> None:
    come = others(2, 16)
    muscle = FedMuscle(made("group-0", tmp_path, {"rows": {"rows": ROWS[:16]}, "others": come}))
    encoder = muscle.me.model.encoders["image"].eval()
    z = normalize(encoder.encode(muscle.me.public.input(muscle.me.model, "image", ROWS[:16])))
    loss = muscle_loss(z, [come["0"], come["1"]], 0.2, 0.15)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in encoder.named_parameters()}
    encoder.zero_grad()
    rate = muscle.params.learning_rate
    before = {name: p.detach().clone() for name, p in encoder.named_parameters()}
    assert muscle.contrast()["contrastive_loss"] == pytest.approx(loss.item(), abs=1e-5)
    for name, p in encoder.named_parameters():  # AdamW's first step
        g = gradients[name]
        wanted = before[name] * (1 - 0.01 * rate) - rate * g / (g.abs() + 1e-8)
        torch.testing.assert_close(p.detach(), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("views", [0, 16])
def test_a_representation_is_the_same_when_it_is_sent_and_when_it_is_learned_from(views: int, tmp_path: Path) -> None:
    me = made("tags-0", tmp_path, {"next": {"rows": ROWS}}, **{"fedmuscle.views": views})
    sent = wire.unpack(represent(me.message, context()).content.array_records["public"])
    assert torch.equal(sent["rows"], ROWS)
    assert torch.allclose(sent["z"].norm(dim=1), torch.ones(64), atol=1e-5)
    later = made("tags-0", tmp_path, step=3, **{"fedmuscle.views": views})
    muscle = FedMuscle(later)
    later.model.eval()
    assert torch.equal(muscle.z(ROWS[:16]).detach(), sent["z"][:16])
    other = FedMuscle(made("tags-0", tmp_path, server_round=3, **{"fedmuscle.views": views}))
    other.me.model.eval()
    assert torch.equal(other.z(ROWS[:16]).detach(), sent["z"][:16]) == (not views), "another round, another view"


def test_each_sees_its_own_view() -> None:
    x = torch.randint(0, 256, (4, 3, 32, 32), generator=generator("x"), dtype=torch.uint8)
    one, again, two = (random_view(x, generator(name)) for name in ("a", "a", "b"))
    assert torch.equal(one, again) and not torch.equal(one, two) and one.dtype == torch.uint8 and one.shape == x.shape
    plain = torch.full((2, 3, 8, 8), 100, dtype=torch.uint8)
    seen = random_view(plain, generator("light"))
    assert all(len(set(picture.flatten().tolist())) == 1 and 79 <= picture.max() <= 121 for picture in seen)


def test_a_row_has_the_same_views_whatever_it_comes_with() -> None:
    x = torch.randint(0, 256, (40, 3, 16, 16), generator=generator("x"), dtype=torch.uint8)
    rows = torch.arange(40)
    seen = {
        number: {picture.numpy().tobytes() for _ in range(30) for picture in one_of(3, x[part], rows[part], rng, 1)}
        for number, part in enumerate((torch.tensor([7]), torch.tensor([7, 7, 7])))
        for rng in [generator("rng", number)]
    }
    assert seen[0] == seen[1] and len(seen[0]) == 3
    assert not seen[0] & {one_of(3, x[7:8], rows[7:8], generator("rng"), 2).numpy().tobytes()}, "another seed"
    assert torch.equal(one_of(3, x, rows, generator("rng"), 1, times=0), x)


def test_a_view_of_a_view_is_drawn_anew() -> None:
    x, rows = torch.randint(0, 256, (3, 3, 16, 16), generator=generator("x"), dtype=torch.uint8), torch.arange(3)
    seen = one_of(1, x, rows, generator("rng"), 5, times=2)
    for row in range(3):
        own = generator(5, "view", row, 0)
        assert torch.equal(seen[row : row + 1], random_view(random_view(x[row : row + 1], own), own))


def test_two_participants_look_at_other_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(me: Participant, rows: torch.Tensor, count: int, rng: torch.Generator) -> torch.Tensor:
        seen.append(torch.randint(2**60, (1,), generator=rng).item())
        return public_view(me, rows, count, rng)

    monkeypatch.setattr(fedmuscle, "public_view", watched)
    for name in ("tags-0", "group-0", "group-0"):
        FedMuscle(made(name, tmp_path, **{"fedmuscle.views": 4})).z(ROWS[:8])
    assert seen[0] != seen[1] == seen[2]


def test_a_view_of_a_text_drops_words_and_keeps_the_rest_in_order() -> None:
    x = torch.tensor([[*range(1, 31), 0, 0], [5] + [0] * 31])
    seen = random_view(x, generator("words"))
    left = [i for i in seen[0].tolist() if i]
    assert 20 <= len(left) < 30 and left == sorted(left) and left[0] == 1
    assert seen[1].tolist() == x[1].tolist() and seen.shape == x.shape
    assert 99 in random_view(x, generator("words"), pad=99)[0].tolist()


def test_views_of_texts_are_filled_up_with_the_encoders_own_padding(tmp_path: Path) -> None:
    me = made("text-0", tmp_path)
    me.model.encoders["text"].pad = 99
    x = me.public.input(me.model, "text", ROWS[:16])
    seen = public_view(me, ROWS[:16], 4, generator("rng"))
    assert (seen == 99).any() and not (x == 99).any()


def test_learned_temperature_moves_and_is_kept(tmp_path: Path) -> None:
    records = {"rows": {"rows": ROWS}, "others": others(2)}
    options = {"fedmuscle.learn-tau": True}
    me = made("group-0", tmp_path, {**records, "next": {"rows": ROWS}}, **options)
    align(me.message, context())
    kept = FedMuscle(made("group-0", tmp_path, step=2, **options)).temperature["log_scale"].item()
    assert kept != 0
    fixed = made("group-0", tmp_path / "fixed", {**records, "next": {"rows": ROWS}})
    align(fixed.message, context())
    assert FedMuscle(made("group-0", tmp_path / "fixed", step=2)).temperature["log_scale"].item() == 0


def test_the_first_round_is_a_local_phase_alone(tmp_path: Path) -> None:
    me = made("group-0", tmp_path, server_round=1)
    reply = train(me.message, context()).content
    assert set(reply.metric_records["metrics"]) == {"task_loss", "num-examples", "seconds", *wire.STATE}
    assert not reply.array_records


def test_simclr_moves_the_encoder_alone_and_holds_views_together(tmp_path: Path) -> None:
    me = made("group-0", tmp_path, algo="simclr")
    optimizer = torch.optim.SGD(me.model.encoders.parameters(), lr=0.1)
    before = state(me)
    losses = [simclr.contrast(me, me.settings.params, optimizer)["contrastive_loss"] for _ in range(4)]
    assert losses[-1] < losses[0] < math.log(31) + 1
    moved = {key for key, tensor in me.model.state_dict().items() if not torch.equal(tensor, before[key])}
    assert moved == {f"encoders.{key}" for key, _ in me.model.encoders.named_parameters()}


def test_simclr_takes_whole_batches_at_its_temperature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(one: torch.Tensor, two: torch.Tensor, tau: float) -> torch.Tensor:
        seen.append((len(one), len(two), tau))
        return nt_xent(one, two, tau)

    monkeypatch.setattr(simclr, "nt_xent", watched)
    words = {"simclr.batch-size": 24, "simclr.tau": 0.3, "simclr.epochs": 2}
    me = made("group-0", tmp_path, algo="simclr", **words)
    simclr.contrast(me, me.settings.params, torch.optim.SGD(me.model.encoders.parameters(), lr=0.1))
    assert seen == [(24, 24, 0.3)] * 4, "64 public samples are two batches of 24; of the rest there is none"
