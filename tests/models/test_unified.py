"""Unified Transformers: one start for all modalities, masked padding, what each parameter is, timm's weights."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from fedapps.checks import unmet
from fedapps.errors import UserError
from fedapps.models import Encoder, LogitHead, Model, build_encoder
from fedapps.models.unified import Place, linears, places
from fedapps.scenario import folder, load_scenario


def built(modality: str, dim: int = 64, **options) -> Encoder:  # type: ignore[no-untyped-def]
    torch.manual_seed(3)
    return build_encoder(modality, "unified", dim, **options)


def test_towers_of_both_modalities_start_alike() -> None:
    image, text = (built(modality).tower.state_dict() for modality in ("image", "text"))  # type: ignore[operator]
    assert image.keys() == text.keys() and all(torch.equal(w, text[n]) for n, w in image.items())
    assert linears(built("image")).keys() == linears(built("text")).keys()


def test_padding_and_company_change_nothing() -> None:
    text = built("text", buckets=64).eval()
    both = text.tokenize(["a cat", "two dogs run over the green hill"])  # type: ignore[operator]
    torch.testing.assert_close(text.encode(both)[:1], text.encode(both[:1, :2]))
    assert text.encode(text.tokenize([""])).isfinite().all()  # type: ignore[operator]


def test_shapes() -> None:
    pictures = torch.randint(0, 256, (2, 3, 50, 40), dtype=torch.uint8)
    image = built("image", dim=8, side=64)
    assert image.encode(pictures).shape == (2, 8) and image.maps(pictures).shape == (2, 64, 8, 8)  # type: ignore[operator]
    assert built("image").encode(pictures).shape == (2, 64)


def test_every_parameter_has_its_place() -> None:
    model = Model({"image": built("image"), "text": built("text", dim=64)}, LogitHead(64, 5))
    found = places(model)
    assert list(found) == [name for name, _ in model.named_parameters()]
    assert Counter(place.part for place in found.values()) == {
        "attention": 32,  # 2 towers of 4 blocks, weight and bias of qkv and proj
        "mlp": 32,
        "norm": 36,
        "embedding": 9,  # BERT's norm belongs to it
        "head": 2,
    }
    assert (
        found["encoders.text.embed.norm.weight"].part == "embedding" and found["head.linear.bias"].modality == "image"
    )
    assert places(Model({"text": built("text", dim=8)}, None))["encoders.text.project.weight"].part == "head"


def test_small_is_vit_s() -> None:
    assert sum(w.numel() for w in built("image", dim=384, size="small").parameters()) == 21_665_664
    assert len(linears(built("text", dim=384, size="small", buckets=64))) == 48


def test_pretrained_weights(tmp_path: Path) -> None:
    import timm
    from safetensors.torch import save_file

    pictures = torch.randint(0, 256, (1, 3, 224, 224), dtype=torch.uint8)
    vit = timm.create_model("vit_small_patch16_224", num_classes=0).eval()
    file = tmp_path / "vit.safetensors"
    save_file(vit.state_dict(), file)
    image = built("image", dim=384, size="small", pretrained=str(file)).eval()
    torch.testing.assert_close(image.encode(pictures), vit((pictures / 255 - 0.5) / 0.5))
    text = built("text", dim=384, size="small", pretrained=str(file), buckets=64)
    assert all(torch.equal(w, text.tower.state_dict()[n]) for n, w in image.tower.state_dict().items())  # type: ignore[operator,union-attr]
    with pytest.raises(UserError, match=r"could not be downloaded .* give a local file"):
        built("image", size="small", pretrained=True)
    with pytest.raises(UserError, match="no pretrained weights of size tiny"):
        built("image", pretrained=True)
    with pytest.raises(UserError, match="side 30 is not divisible by the patch of tiny, 8"):
        built("image", side=30)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("model: unified\n", "model: cnn\n", "'image' have the image model cnn"),
        ("{image: unified, text", "{image: {name: unified, side: 64}, text", "'mm' have another; give all the same"),
        ("model: unified\n", "model: {name: unified, size: small}\n", "'mm' have another"),
    ],
)
def test_towers_that_cannot_be_averaged_are_told(old: str, new: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text((folder() / "cola-tiny.yaml").read_text().replace(old, new))
    scenario = load_scenario(str(path))
    assert any(told in line for line in unmet("fedcola", scenario)) and not list(unmet("fedavg", scenario))
    assert not list(unmet("fedcola", load_scenario("cola-tiny")))


def test_words_by_hand() -> None:
    text, ids = built("text", buckets=64).eval(), torch.tensor([[5, 9, 2]])
    embed, tower = text.embed, text.tower  # type: ignore[attr-defined]
    rows = torch.cat([embed.start[0], embed.words.weight[ids[0]]]) + embed.positions[0, :4]
    torch.testing.assert_close(embed(ids)[0], F.layer_norm(rows, (64,), eps=1e-6))
    torch.testing.assert_close(text.encode(ids), tower(embed(ids))[:, 0])


def test_maps_are_the_patches_in_place() -> None:
    image = built("image").eval()
    x = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    states, maps = image.states(x), image.maps(x)  # type: ignore[attr-defined,operator]
    assert torch.equal(maps[:, :, 1, 2], states[:, 1 + 4 + 2]) and torch.equal(maps[:, :, 3, 3], states[:, -1])


def test_blocks_drop_more_the_deeper_they_are() -> None:
    blocks = built("image", drop_path=0.3).tower.blocks  # type: ignore[union-attr]
    for drop in ("drop_path1", "drop_path2"):
        rates = [getattr(getattr(block, drop), "drop_prob", 0.0) for block in blocks]  # type: ignore[union-attr]
        assert rates == pytest.approx([0, 0.1, 0.2, 0.3])


def test_first_values() -> None:
    text = built("text", buckets=512)
    for layer in linears(text).values():
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.1) and not layer.bias.any()
    assert text.embed.words.weight.std().item() == pytest.approx(0.02, rel=0.1)  # type: ignore[union-attr]
    assert {block.attn.num_heads for block in text.tower.blocks} == {4}  # type: ignore[union-attr]


def test_layers_and_projections_by_name() -> None:
    ends = {kind: {name.rpartition(".")[2] for name in linears(built("image"), kind)} for kind in ("attn", "mlp")}
    assert ends == {"attn": {"qkv", "proj"}, "mlp": {"fc1", "fc2"}}
    found = places(Model({"image": built("image", dim=8), "text": built("text", dim=8)}, LogitHead(8, 5)))
    assert found["encoders.text.project.weight"] == Place("head", "text")


def test_pretrained_weights_of_other_pictures(tmp_path: Path) -> None:
    import timm
    from safetensors.torch import save_file

    vit = timm.create_model("vit_small_patch16_224", num_classes=0)
    torch.nn.init.normal_(vit.norm.weight)
    save_file(vit.state_dict(), tmp_path / "vit.safetensors")
    image = built("image", dim=384, size="small", side=64, pretrained=str(tmp_path / "vit.safetensors"))
    assert torch.equal(image.tower.norm.weight, vit.norm.weight)  # type: ignore[union-attr]
    positions = image.embed.positions  # type: ignore[union-attr]
    assert positions.shape == (1, 17, 384) and torch.equal(positions[:, 0], vit.pos_embed[:, 0])  # type: ignore[index,union-attr]
