"""The running mean against sums of exact fractions: any floating type, any shape, any weights, any order."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from strategies.average import RunningMean, Tensors

FLOATS = [torch.float16, torch.bfloat16, torch.float32]
SHAPES = [(), (0,), (1,), (3,), (2, 0), (2, 2)]


def mean(states: list[Tensors], weights: list[int]) -> dict[str, Tensor] | None:
    found = RunningMean()
    for state, weight in zip(states, weights, strict=True):
        found.add(state, weight)
    return found.result()


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_it_is_the_exact_mean_rounded_whatever_the_order(data: st.DataObject) -> None:
    dtype, shape = data.draw(st.sampled_from(FLOATS)), data.draw(st.sampled_from(SHAPES))
    weights = data.draw(st.lists(st.one_of(st.integers(0, 9), st.integers(0, 2**40)), min_size=1, max_size=30))
    rng = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    scale = data.draw(st.sampled_from([1e-6, 1.0, 1e3]))
    states = [{"w": (scale * torch.randn(shape, generator=rng)).to(dtype)} for _ in weights]
    copies = [state["w"].clone() for state in states]
    got = mean(states, weights)
    order = list(range(len(weights)))
    random.Random(0).shuffle(order)
    other = mean([states[i] for i in order], [weights[i] for i in order])
    if not sum(weights):
        assert got is None and other is None
        return
    assert got is not None and other is not None
    assert got["w"].dtype == dtype and got["w"].shape == shape and torch.equal(got["w"], other["w"])
    for i, value in enumerate(got["w"].flatten().tolist()):
        terms = [w * Fraction(s["w"].flatten()[i].item()) for s, w in zip(states, weights, strict=True)]
        exact = torch.tensor(float(sum(terms) / sum(weights)), dtype=torch.float64).to(dtype)
        assert value == exact.item()
    got["w"].zero_()
    assert all(torch.equal(state["w"], copy) for state, copy in zip(states, copies, strict=True)), "nothing is shared"


def test_one_that_drowns_the_others_does_not_make_them_vanish() -> None:
    """The huge ones cancel; a plain sum of float64 would have lost the small one."""
    states = [{"w": torch.tensor(value)} for value in (3e38, 1.0, -3e38, 5.0)]
    assert (mean(states, [1, 1, 1, 1]) or {})["w"] == 1.5


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_of_counters_the_largest_is_taken_also_where_nothing_is_weighed(dtype: torch.dtype) -> None:
    first, second = torch.tensor([1, 0, 0]).to(dtype), torch.tensor([0, 1, 0]).to(dtype)
    for states in ([{"n": first}, {"n": second}], [{"n": second}, {"n": first}]):
        got = mean(states, [0, 3]) or {}
        assert got["n"].dtype == dtype and got["n"].tolist() == [1, 1, 0]
        got["n"].zero_()
        assert first[0] == 1 and second[1] == 1
    alone = mean([{"n": first}], [1]) or {}
    alone["n"].zero_()
    assert first[0] == 1
