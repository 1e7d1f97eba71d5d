"""FedAFD's client half: what each loss term moves, and what must stay as it is."""

from pathlib import Path

import pytest
import torch
from torch import nn

from clients.base import Means, task_loss
from clients.fedafd import FedAFD
from fedapps.learner import plain, representations, step
from fedapps.participant import Participant
from fedapps.scenario import Named, load_scenario
from fedapps.seeds import generator
from tests.helpers import participant

P, D = 64, 16


def unit(*names: object) -> torch.Tensor:
    return nn.functional.normalize(torch.randn(P, D, generator=generator(*names)))


FEATURES = {"image": unit("image"), "text": unit("text")}


def snapshot(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def moved(module: nn.Module, before: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def made(name: str, folder: Path, **options: object) -> tuple[Participant, FedAFD]:
    me = participant(name, folder, **options)
    return me, FedAFD(me)


@pytest.mark.parametrize("name", ["image-0", "text-0", "mm-0"])
def test_a_discriminator_step_leaves_the_encoder_and_vice_versa(name: str, tmp_path: Path) -> None:
    me, afd = made(name, tmp_path)
    me.model.eval()  # BatchNorm's running statistics aside
    encoder, d_in, d_cr = snapshot(me.model), snapshot(afd.D_in), snapshot(afd.D_cr)
    adv, _ = afd.align(FEATURES, torch.arange(8))
    assert not moved(me.model, encoder) and moved(afd.D_in, d_in) and moved(afd.D_cr, d_cr)
    d_in, d_cr = snapshot(afd.D_in), snapshot(afd.D_cr)
    step(adv, [me.optimizer])
    assert moved(me.model.encoders, {k.removeprefix("encoders."): v for k, v in encoder.items()})
    assert not moved(afd.D_in, d_in) and not moved(afd.D_cr, d_cr)


@pytest.mark.parametrize("name", ["image-0", "text-0", "mm-0"])
def test_global_encoder_and_its_buffers_stay_as_they_came(name: str, tmp_path: Path) -> None:
    _, afd = made(name, tmp_path)
    before = snapshot(afd.global_model)
    afd.joint_epochs(FEATURES)
    afd.evaluate()
    assert not moved(afd.global_model, before)
    assert not afd.global_model.training


def test_each_loss_moves_what_it_should(tmp_path: Path) -> None:
    me, afd = made("image-0", tmp_path)
    represent = afd.fused(afd.global_features())
    me.model.train()
    task_loss(me, torch.arange(8), represent).backward()
    touched = {name for name, p in me.model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert {name.partition(".")[0] for name in touched} == {"encoders", "head"}
    assert all(p.grad is not None for p in afd.gff.parameters())
    assert all(p.grad is None for p in afd.global_model.parameters())
    me.model.zero_grad()
    afd.gff.zero_grad()
    adv, _ = afd.align(FEATURES, torch.arange(8))
    adv.backward()
    assert me.model.head.linear.weight.grad is None
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in me.model.encoders.parameters())
    assert all(p.grad is None for p in afd.gff.parameters())


def test_image_text_participants_play_one_game_for_each_modality(tmp_path: Path) -> None:
    _, afd = made("mm-0", tmp_path)
    assert set(afd.D_in) == set(afd.D_cr) == {"image", "text"}
    _, shared = made("mm-0", tmp_path, **{"fedafd.shared-discriminators": True})
    assert set(shared.D_in) == set(shared.D_cr) == {"both"}


def test_discriminators_compare_with_the_right_modality(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, afd = made("image-0", tmp_path)
    seen = []
    monkeypatch.setattr("clients.fedafd.discriminator_loss", lambda D, real, fake: seen.append(real) or D(real).sum())
    afd.align(FEATURES, torch.arange(4))
    assert torch.equal(seen[0], FEATURES["image"][:4])  # D_in
    assert torch.equal(seen[1], FEATURES["text"][:4])  # D_cr


def test_fused_rows_lie_between_local_and_global_ones(tmp_path: Path) -> None:
    me, afd = made("mm-0", tmp_path)
    rows = torch.arange(10)
    me.model.eval()
    afd.gff.eval()
    for modality in ("image", "text"):
        z = plain(me.model)(me.train, modality, rows)
        z_g = plain(afd.global_model)(me.train, modality, rows)
        fused = afd.fused()(me.train, modality, rows)
        assert (fused <= torch.maximum(z, z_g) + 1e-6).all() and (fused >= torch.minimum(z, z_g) - 1e-6).all()


def test_cached_global_features_are_those_of_the_encoder(tmp_path: Path) -> None:
    me, afd = made("mm-0", tmp_path)
    known = afd.global_features()
    rows = torch.tensor([3, 0, 7])
    for modality in ("image", "text"):
        assert torch.allclose(known[modality][rows], plain(afd.global_model)(me.train, modality, rows), atol=1e-6)


def test_each_encoder_reads_its_own_tokens(tmp_path: Path) -> None:
    """A participant's tokeniser and the server's differ; the global encoder must not read the local one's ids."""
    scenario = load_scenario("emoji-tiny")
    server = scenario.server.model_copy(
        update={"model": {**scenario.server.model, "text": Named(name="bigru", buckets=256)}}
    )
    me, _ = made("mm-0", tmp_path)
    me.scenario = scenario.model_copy(update={"server": server})
    afd = FedAFD(me)
    texts = list(me.train.samples["text"])
    encoder = afd.global_model.encoders["text"]
    expected = nn.functional.normalize(encoder.encode(encoder.tokenize(texts)))
    assert torch.allclose(afd.global_features()["text"], expected, atol=1e-5)


def test_switches_leave_their_part_out(tmp_path: Path) -> None:
    _, afd = made("image-0", tmp_path, **{"fedafd.baa": False})
    before = snapshot(afd.D_in)
    assert set(afd.joint_epochs(FEATURES)) == {"task_loss"} and not moved(afd.D_in, before)
    assert "D_in" not in afd.parts()
    _, afd = made("image-0", tmp_path, **{"fedafd.gff": False})
    before = snapshot(afd.gff)
    afd.joint_epochs(FEATURES)
    assert not moved(afd.gff, before) and "encoder" not in afd.parts()
    assert set(afd.evaluate()) == {"accuracy", "macro_f1", "loss", "accuracy_own_mix"}


def test_controls_stand_beside_the_fused_model(tmp_path: Path) -> None:
    _, afd = made("mm-0", tmp_path)
    metrics = afd.evaluate()
    assert {"r1_sum", "local_r1_sum", "global_r1_sum", "local_r10_sum", "global_r10_sum"} <= set(metrics)
    _, afd = made("image-0", tmp_path)
    metrics = afd.evaluate()
    assert "local_accuracy" in metrics and not any(name.startswith("global_") for name in metrics)


def test_separate_order_makes_a_public_pass_and_a_private_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me, afd = made("image-0", tmp_path, **{"fedafd.order": "separate"})
    steps = []
    monkeypatch.setattr("clients.fedafd.step", lambda loss, optimizers, clip=None: steps.append(optimizers))
    afd.separate_epochs(FEATURES)
    alignment = [o for o in steps if o == [me.optimizer]]
    task = [o for o in steps if o == [me.optimizer, afd.gff_optimizer]]
    assert len(alignment) == P / 16 and len(task) == len(me.train) / 16


def test_state_comes_back_and_gff_is_new_where_asked(tmp_path: Path) -> None:
    me, afd = made("image-0", tmp_path)
    afd.joint_epochs(FEATURES)
    me.keep(**afd.parts())
    for persist in (True, False):
        me2, afd2 = made("image-0", tmp_path, server_round=2, **{"fedafd.gff-persist": persist})
        afd2.restore(new_round=True)
        assert not moved(me2.model, snapshot(me.model)) and not moved(afd2.D_in, snapshot(afd.D_in))
        assert moved(afd2.gff, snapshot(afd.gff)) is not persist


def test_public_representations_are_unit_rows_in_order(tmp_path: Path) -> None:
    me, _ = made("text-0", tmp_path)
    z = representations(me.model, me.public, "text", plain(me.model))
    assert z.shape == (P, D)
    assert torch.allclose(z.norm(dim=1), torch.ones(P), atol=1e-5)
    one = plain(me.model.eval())(me.public, "text", torch.tensor([5]))
    assert torch.allclose(z[5], one[0], atol=1e-5)


def test_means_are_means() -> None:
    means = Means()
    for value in (1.0, 2.0, 6.0):
        means.add(a=torch.tensor(value))
    assert means.result() == {"a": 3.0}
