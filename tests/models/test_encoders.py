"""Every encoder by name: shapes, seeds, modes, gradients, awkward inputs, and what people mistype."""

import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedapps.errors import UserError
from fedapps.models import Encoder, ImageEncoder, Model, TextEncoder, build_encoder

IMAGE = ["cnn", "resnet18", "timm:mobilenetv3_small_050"]
TEXT = ["bag", "bigru", "transformer"]
SENTENCES = ["A red cat, sitting.", "sun", "two dogs run over the green hill", ""]


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> str:
    """The folder of a tiny BERT with random values and a word tokenizer."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "a",
        "red",
        "cat",
        "sun",
        "two",
        "dogs",
        "run",
        ".",
        ",",
    ]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)


def pictures(number: int = 4, height: int = 17, width: int = 23) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (number, 3, height, width), dtype=torch.uint8, generator=generator)


def built(modality: str, name: str, dim: int = 8, seed: int = 3, **options) -> Encoder:
    torch.manual_seed(seed)
    return build_encoder(modality, name, dim, **options)


def every_encoder(bert: str) -> list[tuple[Encoder, torch.Tensor]]:
    """Each encoder with an input of its own."""
    both = [(built("image", name), pictures()) for name in IMAGE]
    for name in [*TEXT, f"hf:{bert}"]:
        encoder = built("text", name)
        both.append((encoder, encoder.tokenize(SENTENCES)))
    return both


def test_shapes_seeds_and_eval_mode(bert):
    for (encoder, x), (twin, _) in zip(every_encoder(bert), every_encoder(bert), strict=True):
        first, second = encoder.state_dict(), twin.state_dict()
        assert all(torch.equal(first[key], second[key]) for key in first), type(encoder)
        encoder.eval(), twin.eval()
        z = encoder.encode(x)
        assert z.shape == (4, 8) and z.dtype == torch.float32 and z.isfinite().all()
        assert torch.equal(z, encoder.encode(x)) and torch.equal(z, twin.encode(x)), type(encoder)


def test_gradient_reaches_every_parameter(bert):
    for encoder, x in every_encoder(bert):
        (F.normalize(encoder.train().encode(x)) * torch.randn(4, 8)).sum().backward()
        lost = [name for name, p in encoder.named_parameters() if p.grad is None or not p.grad.any()]
        assert not lost, (type(encoder), lost)


@pytest.mark.parametrize("name", IMAGE)
@pytest.mark.parametrize("size", [(1, 1), (17, 23), (40, 9)])
def test_images_of_any_size_give_vectors_and_maps(name, size):
    encoder = built("image", name).eval()
    x = pictures(2, *size)
    assert encoder.encode(x).shape == (2, 8)
    assert encoder.maps(x).shape[:2] == (2, encoder.channels)


def test_cnn_maps_are_at_half_the_resolution_and_it_is_small():
    encoder = built("image", "cnn", 64)
    assert encoder.maps(pictures(1, 32, 32)).shape == (1, encoder.channels, 16, 16)
    assert sum(p.numel() for p in encoder.parameters()) == 40_144
    assert sum(p.numel() for p in built("image", "cnn", 64, width=22).parameters()) == 67_054


def test_transformers_of_timm_get_their_fixed_size():
    encoder = built("image", "timm:vit_tiny_patch16_224").eval()
    with torch.no_grad():
        assert encoder.encode(pictures(1)).shape == (1, 8)
        assert encoder.maps(pictures(1)).shape == (1, encoder.channels, 14, 14)


def test_size_resizes_first():
    encoder, small = built("image", "cnn", size=[8, 12]).eval(), pictures(2, 8, 12)
    assert encoder.pixels(pictures(2)).shape == (2, 3, 8, 12)
    assert torch.equal(encoder.encode(small), built("image", "cnn").eval().encode(small))


def test_pixels_are_normalised_and_only_bytes_are_taken():
    encoder = built("image", "cnn")
    white = encoder.pixels(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8))
    assert torch.equal(white, torch.ones(1, 3, 2, 2))
    with pytest.raises(TypeError, match="uint8"):
        encoder.encode(torch.rand(1, 3, 8, 8))
    assert not {"mean", "std"} & set(encoder.state_dict())


@pytest.mark.parametrize(("modality", "name"), [*(("image", n) for n in IMAGE), *(("text", n) for n in TEXT)])
def test_a_batch_of_one_trains(modality, name):
    encoder = built(modality, name).train()
    x = pictures(1, 8, 8) if modality == "image" else encoder.tokenize(["sun"])
    z = encoder.encode(x)
    z.sum().backward()
    assert z.isfinite().all()


@pytest.mark.parametrize(("name", "last"), [("cnn", "stages.2"), ("timm:resnet18", "net.layer4")])
def test_a_lone_value_per_channel_is_normalised_by_running_statistics(name, last):
    encoder = built("image", name).train()
    before = {name: b.clone() for name, b in encoder.named_buffers() if last in name}
    one = encoder.encode(pictures(1, 4, 4))  # the last stage's BatchNorm sees 1 × 1 maps
    assert before and one.isfinite().all()
    assert all(torch.equal(b, before[n]) for n, b in encoder.named_buffers() if n in before)
    assert all(module.training for module in encoder.modules())
    encoder.encode(pictures(2, 4, 4))  # two values have a variance: they count as ever
    assert not any(torch.equal(b, before[n]) for n, b in encoder.named_buffers() if n in before)


@pytest.mark.parametrize("name", TEXT)
def test_padding_changes_nothing_and_empty_text_is_a_vector(name):
    encoder = built("text", name).eval()
    ids = encoder.tokenize(SENTENCES)
    padded = F.pad(ids, (0, 2))
    torch.testing.assert_close(encoder.encode(padded), encoder.encode(ids), atol=1e-6, rtol=0)
    alone = torch.cat([encoder.encode(encoder.tokenize([text])) for text in SENTENCES])
    torch.testing.assert_close(alone, encoder.encode(ids), atol=1e-6, rtol=0)
    nothing = encoder.tokenize(["", " "])
    assert nothing.shape == (2, 1) and not nothing.any()
    assert encoder.encode(nothing).isfinite().all()


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_padding_changes_nothing_in_a_hugging_face_model(bert, pooling):
    encoder = built("text", f"hf:{bert}", pooling=pooling).eval()
    ids = encoder.tokenize(SENTENCES)
    alone = torch.cat([encoder.encode(encoder.tokenize([text])) for text in SENTENCES])
    torch.testing.assert_close(alone, encoder.encode(ids), atol=1e-5, rtol=0)


def test_ids_are_stable_and_cut():
    encoder = built("text", "bigru", buckets=8192, max_length=3)
    assert encoder.tokenize(["Sun"]).tolist() == [[6113]]  # 1 + crc32(b"<sun>") % 8191
    assert encoder.tokenize(["one two three four"]).shape == (1, 3)
    assert encoder.tokenize(["Sun!"])[0, 0] == encoder.tokenize(["sun"])[0, 0]
    assert built("text", "bag").tokenize(["sun"]).shape == (1, 4)  # <sun>, and <su sun un>
    assert built("text", "bag").tokenize([]).shape == (0, 1)


def test_torchvision_weights_from_a_file(tmp_path):
    from torchvision.models import resnet18

    source = resnet18().state_dict()
    torch.save(source, tmp_path / "r.pth")
    encoder = built("image", "resnet18", pretrained=str(tmp_path / "r.pth"))
    assert torch.equal(encoder.net.conv1.weight, source["conv1.weight"])
    assert encoder.project.weight.shape == (8, 512)
    torch.save({"conv1.weight": source["conv1.weight"], "x": torch.zeros(1)}, tmp_path / "bad.pth")
    with pytest.raises(UserError, match="does not fit"):
        built("image", "resnet18", pretrained=str(tmp_path / "bad.pth"))


def test_timm_weights_from_a_file(tmp_path):
    import timm

    source = timm.create_model("resnet10t").state_dict()
    torch.save(source, tmp_path / "r.pth")
    encoder = built("image", "timm:resnet10t", pretrained=str(tmp_path / "r.pth"))
    name = next(iter(source))
    assert torch.equal(encoder.net.state_dict()[name], source[name])


def test_own_models_by_dotted_path(monkeypatch):
    class Own(ImageEncoder):
        def __init__(self, dim: int, shift: float = 0.0) -> None:
            super().__init__(dim, None)
            self.weight, self.shift = nn.Parameter(torch.ones(3, dim)), shift

        def encode(self, x):
            return self.pixels(x).mean((2, 3)) @ self.weight + self.shift

    module = types.ModuleType("own_models")
    module.Own, module.wrong, module.text = Own, lambda dim: nn.Linear(dim, dim), Own
    monkeypatch.setitem(sys.modules, "own_models", module)
    assert built("image", "own_models:Own", shift=2.0).shift == 2.0
    for modality, name, options in [
        ("image", "own_models:nothing", {}),
        ("image", "no_such_module:f", {}),
        ("image", "own_models:wrong", {}),
        ("text", "own_models:Own", {}),
        ("image", "own_models:Own", {"shfit": 1}),
    ]:
        with pytest.raises(UserError, match=r"own_models|no_such_module"):
            built(modality, name, **options)

    def fails(dim: int):
        raise KeyError("no\nweights")

    module.fails = fails
    with pytest.raises(UserError) as error:
        built("image", "own_models:fails")
    assert str(error.value) == r"""model 'own_models:fails' failed: KeyError: 'no\nweights'"""


@pytest.mark.parametrize(
    ("modality", "name", "options", "said"),
    [
        ("image", "cnnn", {}, "did you mean 'cnn'"),
        ("text", "biggru", {}, "did you mean 'bigru'"),
        ("image", "bag", {}, "for text, not for image"),
        ("text", "timm:resnet18", {}, "for image, not for text"),
        ("imag", "cnn", {}, "did you mean 'image'"),
        ("image", "timm:", {}, "does not say which of timm's models, expected timm:<name>"),
        ("text", "hf", {}, "does not say which of hf's models, expected hf:<name>"),
        ("image", "cnn", {"dim": 4}, "model cnn: dim is the scenario's"),
        ("image", "cnn", {"modality": "text"}, "model cnn: no option 'modality'"),
        ("image", "os:name", {}, "model 'os:name' is no function but 'posix'"),
        ("image", "builtins:divmod", {"path": 1}, "builtins:divmod"),
        ("image", ":f", {}, "model ':f': ValueError: Empty module name"),
        ("image", "timm:resnet18x", {}, "did you mean 'timm:resnet18"),
        ("image", "cnn", {"widht": 8}, "did you mean 'width'"),
        ("image", "cnn", {"width": 0}, "width: Input should be greater than 0, got 0"),
        ("image", "cnn", {"width": "wide"}, "width"),
        ("text", "transformer", {"width": 30}, "not divisible by heads 4"),
        ("image", "resnet18", {"pretrained": "IMAGENET"}, "IMAGENET1K_V1"),
        ("image", "resnet18", {"pretrained": "/no/such.pth"}, "no file /no/such.pth"),
        ("image", "timm:resnet18", {"pretrained": "/no/such.pth"}, "no file /no/such.pth"),
        ("text", "hf:/no/such/folder", {}, "hf:/path/to/folder"),
    ],
)
def test_mistakes_are_told_in_one_line(modality, name, options, said):
    with pytest.raises(UserError) as error:
        build_encoder(modality, name, 8, **options)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_model_gives_unit_rows_and_holds_its_parts():
    encoders = {"image": built("image", "cnn"), "text": built("text", "bag")}
    model = Model(encoders, nn.Linear(8, 3)).eval()
    for modality, x in (("image", pictures()), ("text", encoders["text"].tokenize(SENTENCES))):
        assert isinstance(encoders[modality], ImageEncoder if modality == "image" else TextEncoder)
        torch.testing.assert_close(model.represent(modality, x).norm(dim=1), torch.ones(4))
    assert {name.split(".")[0] for name in model.state_dict()} == {"encoders", "head"}
