"""FedKD: losses by hand, fixed teachers and denominators, the energy's schedule, and what the server adds up."""

from pathlib import Path

import pytest
import torch
from flwr.app import Message
from torch import nn
from torch.nn import functional as F

from clients.base import kl
from clients.fedkd import energy, losses, train
from fedapps import wire
from fedapps.learner import build_shared, plain
from fedapps.low_rank import expand
from fedapps.models import Model, head_of
from fedapps.participant import Participant
from fedapps.scenario import load_scenario
from simulations.in_process import run
from tests.helpers import context, participant

ROWS = torch.arange(8)


def joined(folder: Path, **options: object) -> tuple[Participant, Model, nn.Module]:
    theta = build_shared(load_scenario("mrl-tiny"), "image", 24, 9, 1)
    me = participant("a-0", folder, {"shared": theta.state_dict()}, algo="fedkd", scenario="mrl-tiny", **options)
    return me, me.shared_model(), nn.Linear(24, 24, bias=False)


def moved(module: nn.Module) -> bool:
    return any(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())


def test_losses_by_hand(tmp_path: Path) -> None:
    me, mentee, W = joined(tmp_path)
    y = me.train.targets(ROWS)
    h_t, h_s = (plain(model)(me.train, "image", ROWS) for model in (me.model, mentee))
    o_t, o_s = head_of(me.model)(h_t), head_of(mentee)(h_s)
    L_t, L_s = F.cross_entropy(o_t, y), F.cross_entropy(o_s, y)
    hidden = F.mse_loss(h_t, W(h_s))
    mentor, student = losses(me, mentee, W, ROWS)
    assert mentor.item() == pytest.approx((L_t + (kl(o_s, o_t) + hidden) / (L_t + L_s)).item(), rel=1e-5)
    assert student.item() == pytest.approx((L_s + (kl(o_t, o_s) + hidden) / (L_t + L_s)).item(), rel=1e-5)


def test_teachers_and_denominators_are_fixed(tmp_path: Path) -> None:
    for which in (0, 1):
        me, mentee, W = joined(tmp_path)
        losses(me, mentee, W, ROWS)[which].backward()
        assert [moved(module) for module in (me.model, mentee, W)] == [which == 0, which == 1, which == 1]


def test_energy_rises_over_the_rounds(tmp_path: Path) -> None:
    kept = [energy(joined(tmp_path, server_round=r, **{"num-server-rounds": 4})[0]) for r in range(1, 5)]
    assert kept == pytest.approx([0.95, 0.96, 0.97, 0.98])


def test_the_update_is_what_training_changed(tmp_path: Path) -> None:
    me, mentee, _ = joined(tmp_path, **{"fedkd.t-start": 1.0, "fedkd.t-end": 1.0})
    reply = train(me.message, context()).content
    update = expand(wire.unpack(reply.array_records["update"]), mentee.state_dict())
    assert set(reply.array_records) == {"update"}
    assert all(update[name].shape == tensor.shape for name, tensor in mentee.state_dict().items())
    assert update["head.linear.weight"].abs().sum() > 0
    assert update["encoders.image.stages.0.1.num_batches_tracked"] > 0


def test_the_server_adds_the_mean_update(tiny: dict) -> None:
    """With one participant a round, θ of the next round is θ plus its update."""
    thetas, updates = [], []

    def look(message: Message, reply: Message) -> Message:
        for key, value in message.content.items():
            if key.endswith("/shared") and message.metadata.message_type == "train":
                thetas.append(wire.unpack(value))
        updates.extend(wire.unpack(value) for key, value in reply.content.items() if key.endswith("/update"))
        return reply

    run({**tiny, "algo": "fedkd", "scenario": "mrl-tiny", "fraction-train": 0.2}, tamper=look)
    update = expand(updates[0], thetas[0])
    assert len(thetas) == 2
    for name, tensor in thetas[0].items():
        assert torch.allclose(thetas[1][name].double(), (tensor + update[name]).double(), atol=1e-6)
