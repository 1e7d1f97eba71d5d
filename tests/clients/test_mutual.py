"""FML and FedAPEN: teachers are fixed, KL is a mean over samples, λ stays in [0, 1], only θ leaves."""

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from clients import fedapen, fedavg, fml, lgfedavg
from clients.base import evaluate, kl
from fedapps.learner import build_learner, build_shared
from fedapps.models import LogitHead
from fedapps.participant import Participant
from fedapps.scenario import load_scenario
from tests.helpers import context, participant, scores

ROWS = torch.arange(8)


def joined(algo: str, folder: Path, **options: object) -> Participant:
    """A participant of mrl-tiny with a shared model that came."""
    theta = build_shared(load_scenario("mrl-tiny"), "image", 24, 9, 1)
    records = {"shared": theta.state_dict()}
    return participant("a-0", folder, records, algo=algo, scenario="mrl-tiny", **options)


def test_kl_is_a_mean_over_samples_and_fixes_the_teacher() -> None:
    teacher, student = torch.randn(4, 10, requires_grad=True), torch.randn(4, 10, requires_grad=True)
    p, q = teacher.softmax(1), student.softmax(1)
    assert kl(teacher, student).item() == pytest.approx((p * (p / q).log()).sum(1).mean().item(), rel=1e-5)
    kl(teacher, student).backward()
    assert teacher.grad is None and student.grad is not None
    assert kl(teacher, teacher).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("algo", ["fml", "fedapen"])
def test_only_the_shared_model_leaves_and_it_has_learned(algo: str, tmp_path: Path) -> None:
    module = {"fml": fml, "fedapen": fedapen}[algo]
    me = joined(algo, tmp_path)
    reply = module.train(me.message, context()).content
    assert set(reply.array_records) == {"shared"}
    before = me.received("shared")
    after = joined(algo, tmp_path).shared_model().state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    tested = module.test(joined(algo, tmp_path).message, context()).content
    assert {"accuracy", "shared_accuracy"} <= set(tested["evaluate"])


@pytest.mark.parametrize(("key", "moved"), [("fml.alpha", "task_loss"), ("fml.beta", "meme_loss")])
def test_weights_of_fml_switch_the_labels_off(key: str, moved: str, tmp_path: Path) -> None:
    """With α = 0 (β = 0) that model learns from its teacher alone."""
    losses = [
        fml.train(joined("fml", tmp_path / str(weight), **{key: weight}).message, context()).content["metrics"][moved]
        for weight in (1.0, 0.0)
    ]
    assert losses[0] > 1.5 > losses[1]  # CE of an untrained model, KL of two untrained ones


def test_each_loss_of_fedapen_moves_its_own_model(tmp_path: Path) -> None:
    for which in (0, 1):
        apen = fedapen.FedAPEN(joined("fedapen", tmp_path))
        apen.losses(ROWS)[which].backward()
        grads = [any(p.grad is not None for p in model.parameters()) for model in (apen.me.model, apen.shared)]
        assert grads == [which == 0, which == 1]
        assert apen.weight.value.grad is None


def test_losses_of_fedapen_by_hand(tmp_path: Path) -> None:
    apen = fedapen.FedAPEN(joined("fedapen", tmp_path))
    apen.weight.value.data.fill_(0.25)
    y = apen.me.train.targets(ROWS)
    own, shared = (apen.logits(model, apen.me.train, ROWS) for model in (apen.me.model, apen.shared))
    expected = F.cross_entropy(own, y) + kl(shared, own) + F.cross_entropy(0.25 * own + 0.75 * shared, y)
    assert apen.losses(ROWS)[0].item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(("better", "end"), [("own", 1.0), ("shared", 0.0)])
def test_the_weight_goes_to_the_better_model_and_stays_in_its_bounds(
    better: str, end: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = joined("fedapen", tmp_path, **{"fedapen.weight-epochs": 200, "fedapen.weight-learning-rate": 0.5})
    apen = fedapen.FedAPEN(me)
    truth = 5 * F.one_hot(me.train.targets(apen.held_out), 9).float()

    def logits(model: object, view: object, rows: object) -> torch.Tensor:
        return truth if (model is me.model) == (better == "own") else -truth

    monkeypatch.setattr(apen, "logits", logits)
    apen.learn_weight()
    assert apen.weight.value.item() == end


def test_held_out_rows_are_not_trained_on(tmp_path: Path) -> None:
    apen = fedapen.FedAPEN(joined("fedapen", tmp_path))
    assert len(apen.held_out) == 2 and len(apen.rows) == 38  # 5 % of 40
    assert not set(apen.held_out.tolist()) & set(torch.cat(apen.batches()).tolist())
    again = fedapen.FedAPEN(joined("fedapen", tmp_path, server_round=2))
    assert torch.equal(apen.held_out, again.held_out)


@pytest.mark.parametrize(("rows", "held_out", "count"), [(40, 0.999, 39), (40, 0.175, 7), (2, 0.5, 1), (1, 0.05, 0)])
def test_a_row_is_left_to_train_on(rows: int, held_out: float, count: int, tmp_path: Path) -> None:
    text = Path("simulations/scenarios/mrl-tiny.yaml").read_text()
    scenario = tmp_path / "few.yaml"
    scenario.write_text(text.replace("partition: pathological, classes: 2, size: 40", f"size: {rows}, min-size: 1"))
    records = {"shared": build_shared(load_scenario("mrl-tiny"), "image", 24, 9, 1).state_dict()}
    options = {"algo": "fedapen", "scenario": str(scenario), "fedapen.held-out": held_out}
    me = participant("a-0", tmp_path, records, **options)
    apen = fedapen.FedAPEN(me)
    assert (len(apen.held_out), len(apen.rows)) == (count, rows - count)
    metrics = fedapen.train(me.message, context()).content["metrics"]
    assert math.isfinite(metrics["task_loss"]) and math.isfinite(metrics["shared_loss"])


def test_lg_fedavg_sends_the_head_and_keeps_the_encoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    head = LogitHead(24, 9).linear.state_dict()
    me = participant("a-0", tmp_path, {"head": head}, algo="lg-fedavg", scenario="mrl-tiny")
    reply = lgfedavg.train(me.message, context()).content
    assert set(reply.array_records) == {"head"}
    kept = (me.store.load() or {})["model"]
    later = participant("a-0", tmp_path, {"head": head}, server_round=2, algo="lg-fedavg", scenario="mrl-tiny")
    later.restore()
    assert all(torch.equal(t, kept[name]) for name, t in later.model.state_dict().items())


def test_lg_fedavg_is_tested_with_the_head_that_came(tmp_path: Path) -> None:
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        head = LogitHead(24, 9).linear.state_dict()
        me = participant("a-0", tmp_path, {"head": head}, algo="lg-fedavg", scenario="mrl-tiny")
        results.append(scores(lgfedavg.test(me.message, context()).content)["loss"])
        model = participant("a-0", tmp_path, algo="lg-fedavg", scenario="mrl-tiny")
        model.model.head.linear.load_state_dict(head)
        assert results[-1] == pytest.approx(evaluate(model)["loss"])
    assert results[0] != results[1]


def test_fedavg_starts_from_what_came_and_keeps_nothing(tmp_path: Path) -> None:
    scenario = load_scenario("mrl-same-tiny")
    model, _ = build_learner(scenario.by_name["text-0"], scenario.dim, 10, 7)
    options = {"algo": "fedavg", "scenario": "mrl-same-tiny"}
    me = participant("text-0", tmp_path, {"model": model.state_dict()}, **options)
    sent = scores(fedavg.test(me.message, context()).content)
    again = participant("text-0", tmp_path / "elsewhere", {"model": model.state_dict()}, server_round=5, **options)
    assert sent == scores(fedavg.test(again.message, context()).content)
    fedavg.train(me.message, context())
    assert me.store.versions() == []
