"""FedHeNN's server half: which rows, and whose mean."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedapps import wire
from simulations.in_process import run
from tests.alike import ALONE, GROUP, TAGS, P, alike
from tests.faults import lost, phase_of

L = 24


def test_a_round_compares_the_grams_that_were_sent_of_its_rows(tmp_path: Path) -> None:
    down: dict[int, list[dict[str, dict[str, Tensor]]]] = {1: [], 2: [], 3: []}
    up: dict[int, dict[str, Tensor]] = {1: {}, 2: {}, 3: {}}

    def look(message, reply):  # type: ignore[no-untyped-def]
        config: Any = message.content["*/config"]
        if message.metadata.message_type == "train":
            records = wire.records_of(message.content, "*")
            records.pop("config")
            down[config["server-round"]].append({key: wire.unpack(value) for key, value in records.items()})
            for key, value in reply.content.array_records.items():
                up[config["server-round"]][key.partition("/")[0]] = wire.unpack(value)["K"]
        return reply

    run(alike(tmp_path, algo="fedhenn"), tamper=look)
    assert set(up[1]) == {*TAGS, *GROUP, *ALONE}  # every task takes part
    assert all(set(records) == {"next"} for records in down[1])
    for server_round in (2, 3):
        for records in down[server_round]:
            assert set(records) == {"next", "rows", "target"}
            assert torch.equal(records["rows"]["rows"], down[server_round - 1][0]["next"]["rows"])
            want = torch.stack([K.double() for K in up[server_round - 1].values()]).mean(dim=0)
            assert torch.allclose(records["target"]["K"].double(), want, atol=1e-7)
            assert torch.allclose(records["target"]["K"].sum(dim=1), torch.zeros(L), atol=1e-5)  # centred
    rows = [down[r][0]["next"]["rows"] for r in (1, 2, 3)]
    assert all(len(set(found.tolist())) == L and found.max() < P for found in rows)
    assert not torch.equal(rows[0], rows[1]) and not torch.equal(rows[1], rows[2])  # drawn anew


def test_after_a_skipped_round_the_mean_is_still_held_against_the_rows_that_it_is_of(tmp_path: Path) -> None:
    """Nobody answers in round 2: in round 3 there is the mean of what was sent in round 1, of the rows named there."""
    down: dict[int, dict[str, dict[str, Tensor]]] = {}

    def look(message, reply):  # type: ignore[no-untyped-def]
        server_round, phase = phase_of(message)
        if phase != "train":
            return reply
        records = wire.records_of(message.content, "*")
        down[server_round] = {key: wire.unpack(value) for key, value in records.items() if key != "config"}
        return lost(message) if server_round == 2 else reply

    run(alike(tmp_path, algo="fedhenn", **{"num-server-rounds": 4}), tamper=look)
    assert torch.equal(down[3]["target"]["K"], down[2]["target"]["K"])
    assert torch.equal(down[3]["rows"]["rows"], down[1]["next"]["rows"])
    assert torch.equal(down[4]["rows"]["rows"], down[3]["next"]["rows"])
