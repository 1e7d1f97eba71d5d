"""Finite numbers that are beyond what a method's records can hold: refused by name, as if there had been no reply."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fedapps import wire
from fedapps.losses.cka import centred_gram
from fedapps.wire import WireError
from strategies import bounds
from tests.faults import config_of
from tests.replay import Recorded, Records, record, replay

MOST = torch.finfo(torch.float32).max
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Recorded]:
    """Two rounds of a method, recorded once."""

    @cache
    def of(algo: str) -> Recorded:
        return record(config_of(algo, tmp_path_factory.mktemp(algo), **{"num-server-rounds": 2}))

    return of


def filled(value: float) -> Callable[[Tensor], Tensor]:
    return lambda t: torch.full_like(t, value)


def first(value: float) -> Callable[[Tensor], Tensor]:
    """One number replaced."""

    def change(t: Tensor) -> Tensor:
        t = t.clone()
        t.view(-1)[0] = value
        return t

    return change


def moved(n: Tensor) -> Tensor:
    """Counts that still add up, but one is negative."""
    n = n.clone()
    n[0], n[1] = -1, n[0] + n[1] + 1
    return n


LONG = "its representations are longer than 1"
NO_GRAM = "its Gram matrix is none of centred representations"
BEYOND: list[tuple[str, str, str, Callable[[Tensor], Tensor], str]] = [
    ("fedafd", "features", "image", filled(1e30), LONG),
    ("fedafd", "features", "image", filled(MOST), LONG),
    ("fedafd", "features", "image", lambda z: 1.1 * z, LONG),
    ("fedmuscle", "public", "z", filled(1e30), LONG),
    ("fedmuscle", "public", "z", filled(-MOST), LONG),
    ("fedproto", "prototypes", "means", filled(1e30), "its representations are longer than 1000000"),
    ("fedproto", "prototypes", "means", first(-MOST), "its representations are longer than 1000000"),
    ("fedproto", "prototypes", "counts", moved, "its samples of a class are no count"),
    ("fedproto", "prototypes", "counts", lambda n: n + 0.5, "its samples of a class are no count"),
    ("fedproto", "prototypes", "counts", lambda n: 2 * n, "its samples of all classes are 80, not the 40 that it has"),
    ("fedproto", "prototypes", "counts", filled(MOST), "its samples of all classes are 3"),
    ("fd", "outputs", "means", filled(1e30), "its probabilities are not from 0 to 1"),
    ("fd", "outputs", "means", lambda p: p - 0.1, "its probabilities are not from 0 to 1"),
    ("fd", "outputs", "means", lambda p: p / 2, "its probabilities do not sum to 1"),
    ("fd", "outputs", "counts", moved, "its samples of a class are no count"),
    ("fd", "outputs", "counts", filled(1e30), "its samples of all classes are 9"),
    ("sage", "public", "p", filled(MOST), "its probabilities are not from 0 to 1"),
    ("sage", "public", "p", first(-0.5), "its probabilities are not from 0 to 1"),
    ("cofed", "votes", "labels", first(9), "its labels are not from -1 to 8"),
    ("cofed", "votes", "labels", filled(-(2**63)), "its labels are not from -1 to 8"),
    ("cofed", "owned", "classes", filled(MOST), "its labels are not from 0 to 1"),
    ("fedhenn", "gram", "K", filled(1e30), "its representations are further than 2 from their mean"),
    ("fedhenn", "gram", "K", first(MOST), "its representations are further than 2 from their mean"),
    ("fedhenn", "gram", "K", lambda K: -K, NO_GRAM),
    ("fedhenn", "gram", "K", filled(1.0), NO_GRAM),
    ("fedhenn", "gram", "K", torch.triu, NO_GRAM),
]
NAMES = {"fedafd": "image-0", "fedmuscle": "group-0", "sage": "group-0", "cofed": "group-0", "fedhenn": "group-0"}


def changed(record: str, tensor: str, change: Callable[[Tensor], Tensor]) -> Callable[[Records], Records]:
    def new(records: Records) -> Records:
        tensors = wire.unpack(records[record])
        return {**records, record: wire.pack({**tensors, tensor: change(tensors[tensor])})}

    return new


@pytest.mark.parametrize(("algo", "record", "tensor", "change", "words"), BEYOND)
def test_what_is_beyond_a_methods_definition_is_refused_by_name(
    algo: str,
    record: str,
    tensor: str,
    change: Callable[[Tensor], Tensor],
    words: str,
    recorded: Callable[[str], Recorded],
) -> None:
    name, when = NAMES.get(algo, "a-0"), (2, "represent") if algo == "fedmuscle" else (1, "train")
    got = replay(recorded(algo), {when: {name: changed(record, tensor, change)}})
    assert list(got.errors) == [(when[0], name)] and got.errors[when[0], name].startswith(words)
    want = replay(recorded(algo), {when: {name: lambda _: {}}})
    assert (got.state, got.others(name)) == (want.state, want.others(name))
    everyone: dict[str, Any] = {"min-participants": len(recorded(algo).names)}
    counted = replay(recorded(algo), {when: {name: changed(record, tensor, change)}}, **everyone)
    assert f"({name}: {words}" in counted.errors[when[0], "server"], "it is one too few"


def test_low_rank_factors_whose_product_is_beyond_float32_are_refused(recorded: Callable[[str], Recorded]) -> None:
    """Each factor is finite; their product was an infinity in θ, for everybody and ever after."""

    def huge(records: Records) -> Records:
        tensors = wire.unpack(records["update"])
        factors = {name: torch.full_like(t, 1e30) for name, t in tensors.items() if name.endswith((".u", ".s", ".v"))}
        assert factors
        return {**records, "update": wire.pack({**tensors, **factors})}

    got = replay(recorded("fedkd"), {(1, "train"): {"a-0": huge}})
    assert list(got.errors) == [(1, "a-0")] and got.errors[1, "a-0"].endswith("is beyond float32")
    assert got.state == replay(recorded("fedkd"), {(1, "train"): {"a-0": lambda _: {}}}).state


def test_what_participants_send_is_within_bounds_also_without_scaling() -> None:
    x = 1e3 * torch.randn(50, 7)
    bounds.gram(centred_gram(x), unit=False)
    bounds.gram(centred_gram(torch.nn.functional.normalize(x)), unit=True)
    bounds.gram(torch.zeros(5, 5), unit=True)
    bounds.representations(x, unit=False)
    bounds.probabilities(torch.rand(5, 3), of_one=False)
    bounds.probabilities(torch.empty(0, 3))
    with pytest.raises(WireError, match="further than 2 from"):
        bounds.gram(centred_gram(x), unit=True)
    with pytest.raises(WireError, match="further than 2000"):
        bounds.gram(centred_gram(1e6 * x), unit=False)


def test_a_matrix_with_a_negative_eigenvalue_is_no_gram_matrix() -> None:
    """Symmetric, of rows that sum to 0, and of a positive trace."""
    u, v = torch.tensor([1.0, -1, 0, 0]), torch.tensor([0.0, 0, 1, -1])
    bounds.gram(torch.outer(u, u) + torch.outer(v, v) / 2, unit=True)
    with pytest.raises(WireError, match=NO_GRAM):
        bounds.gram(torch.outer(u, u) - torch.outer(v, v) / 2, unit=True)


def test_a_matrix_that_is_not_symmetric_is_no_gram_matrix() -> None:
    """Of rows and columns that sum to 0, and of a lower half that is positive definite."""
    turn = torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    K = torch.eye(3) - 1 / 3
    bounds.gram(K, unit=True)
    assert torch.linalg.eigvalsh(K + turn / 10)[0] > 0
    with pytest.raises(WireError, match=NO_GRAM):
        bounds.gram(K + turn / 10, unit=True)


@pytest.mark.parametrize("samples", [3, 5])
def test_samples_of_classes_add_up_to_those_of_a_participant(samples: int) -> None:
    bounds.counts(torch.tensor([3.0, 0.0, 1.0]), 4)
    with pytest.raises(WireError, match=f"its samples of all classes are 4, not the {samples} that it has"):
        bounds.counts(torch.tensor([3.0, 0.0, 1.0]), samples)


@pytest.mark.parametrize(("unit", "longest"), [(True, 1.0), (False, 1e6)])
def test_one_representation_that_is_too_long_is_enough(unit: bool, longest: float) -> None:
    z = torch.zeros(2, 5, 3)
    z[1, 2] = longest * torch.tensor([0.6, 0.0, -0.8])
    bounds.representations(z, unit)
    with pytest.raises(WireError, match=f"longer than {longest:.0f}"):
        bounds.representations(1.01 * z, unit)
