"""Low-rank updates: energy is held, full rank is not lost, nothing grows, and layouts fold back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapps import wire
from fedapps.low_rank import compress, expand, fold


def size(tensors: dict[str, torch.Tensor]) -> int:
    return sum(t.numel() for t in tensors.values())


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.floats(0.5, 1.0), st.integers(0, 99))
def test_energy_is_held_and_nothing_grows(m: int, n: int, rank: int, energy: float, seed: int) -> None:
    torch.manual_seed(seed)
    sent = {"w": torch.randn(m, rank) @ torch.randn(rank, n)}
    packed = compress(sent, energy)
    got = expand(packed, sent)["w"]
    assert size(packed) <= m * n
    assert (got - sent["w"]).square().sum() <= (1 - energy) * sent["w"].square().sum() + 1e-6


@pytest.mark.parametrize("matrix", [torch.eye(8), torch.randn(10, 512), torch.ones(3, 1), torch.zeros(40, 40)])
def test_a_matrix_that_needs_all_its_rank_is_not_sent_as_zeros(matrix: torch.Tensor) -> None:
    got = expand(compress({"w": matrix}, 0.98), {"w": matrix})["w"]
    assert (got - matrix).norm() <= 0.15 * matrix.norm()


def test_rank_one_by_hand() -> None:
    matrix = 2 * torch.outer(torch.ones(30), torch.ones(20))
    packed = compress({"w": matrix}, 0.95)
    assert {name: tuple(t.shape) for name, t in packed.items()} == {"w.u": (30, 1), "w.s": (1,), "w.v": (1, 20)}
    assert packed["w.s"].item() == pytest.approx(2 * 600**0.5, rel=1e-5)
    assert torch.allclose(expand(packed, {"w": matrix})["w"], matrix, atol=1e-5)


def test_convolutions_are_cut_by_output_and_vectors_and_counters_stay() -> None:
    conv = torch.outer(torch.randn(32), torch.randn(16 * 25)).reshape(32, 16, 5, 5)
    sent = {"conv": conv, "bias": torch.randn(32), "count": torch.tensor(3)}
    packed = compress(sent, 0.95)
    assert set(packed) == {"conv.u", "conv.s", "conv.v", "bias", "count"}
    got = expand(packed, sent)
    assert got["conv"].shape == conv.shape and torch.allclose(got["conv"], conv, atol=1e-5)
    assert got["count"].dtype == torch.int64


def test_layouts_fold_back_and_the_contract_takes_them() -> None:
    like = {"w": torch.outer(torch.randn(30), torch.randn(20)), "b": torch.randn(30)}
    known = wire.layout_of(like)
    packed = compress(like, 0.9)
    assert fold(wire.layout_of(packed), known) == known == fold(known, known)
    allowed, layouts = {"update": "low-rank shared model"}, {"low-rank shared model": known}
    wire.check_arrays({"update": wire.pack(packed)}, allowed, {}, layouts, ["image"])
    for wrong in (
        {**packed, "w.s": torch.zeros(2)},
        {**packed, "w.u": torch.zeros(30, 2)},
        {**packed, "secret.u": torch.zeros(3, 1)},
        {name: t for name, t in packed.items() if name != "w.v"},
        {**packed, "w": like["w"]},
    ):
        with pytest.raises(wire.WireError):
            wire.check_arrays({"update": wire.pack(wrong)}, allowed, {}, layouts, ["image"])
