"""The benchmark of the Muscle loss measures two forms of one loss, and its bytes are those of the messages."""

import pytest

from simulations.bench.muscle import measure


@pytest.mark.parametrize("M", [1, 2, 3])
def test_both_forms_are_one_loss_and_bytes_are_counted(M: int) -> None:
    naive, contracted = measure("naive", 6, M), measure("contracted", 6, M)
    assert naive.loss == pytest.approx(contracted.loss, abs=1e-5)
    assert naive.sent == 4 * (6**M * 256 + 6**M) and contracted.sent == 4 * M * 6 * 256
    assert naive.ms and contracted.ms
