"""Seeds are named by what they are for; batches cover every row once and never end in a single row."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapps.seeds import batches, generator, seed_of


def test_seeds_differ_by_name_and_repeat() -> None:
    names = [
        (1, 1, 1, "image-0"),
        (1, 1, 1, "image-1"),
        (1, 1, 2, "image-0"),
        (1, 2, 1, "image-0"),
        (2, 1, 1, "image-0"),
    ]
    assert len({seed_of(*name) for name in names}) == len(names)
    assert seed_of(1, "a") == seed_of(1, "a")
    assert 0 <= seed_of("x") < 2**63


def test_generator_does_not_touch_the_global_one() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    torch.randn(3, generator=generator(1, "x"))
    assert torch.equal(before, torch.get_rng_state())


@given(st.integers(1, 200), st.integers(1, 70))
def test_batches_cover_all_rows_once(count: int, size: int) -> None:
    parts = batches(count, size, generator(count, size))
    assert sorted(torch.cat(parts).tolist()) == list(range(count))
    assert count == 1 or size == 1 or all(len(part) > 1 for part in parts)


@pytest.mark.parametrize(("count", "size", "lengths"), [(9, 4, [4, 5]), (8, 4, [4, 4]), (1, 4, [1]), (3, 1, [1, 2])])
def test_a_last_batch_of_one_joins_the_one_before(count: int, size: int, lengths: list[int]) -> None:
    assert [len(part) for part in batches(count, size)] == lengths
