"""Ranks against one-at-a-time counting, ties and duplicates included."""

import time

import pytest
import torch
from torch.nn import functional as F

from fedapps.tasks.ranking import distinct, folds, ranks, recalls


def brute(queries, gallery, query_ids, gallery_ids):
    found, tied = [], []
    for q, own in zip(queries, query_ids, strict=True):
        scores = [float(q @ g) for g in gallery]
        best = max(s for s, i in zip(scores, gallery_ids, strict=True) if i == own)
        found.append(sum(s > best for s in scores))
        tied.append(any(s == best and i != own for s, i in zip(scores, gallery_ids, strict=True)))
    return found, tied


@pytest.mark.parametrize("block", [1, 4, 100])
@pytest.mark.parametrize("seed", range(5))
def test_ranks_are_brute_force_with_ties_and_several_matches(seed, block):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda low, high, *shape: torch.randint(low, high, shape, generator=generator)  # noqa: E731
    images, texts = draw(-1, 2, 30, 3).float(), draw(-1, 2, 17, 3).float()  # small integers: many exact ties
    image_ids = torch.cat([torch.arange(6), draw(0, 6, 24)])
    text_ids = torch.cat([torch.arange(6), draw(0, 6, 11)])
    for a, b, a_ids, b_ids in ((images, texts, image_ids, text_ids), (texts, images, text_ids, image_ids)):
        found, tied = ranks(a, b, a_ids, b_ids, block)
        assert (found.tolist(), tied.tolist()) == brute(a, b, a_ids, b_ids)


def test_ties_go_in_the_query_s_favour_and_are_told():
    same = torch.ones(4, 2)
    found, tied = ranks(same, same, torch.arange(4), torch.arange(4))
    assert found.tolist() == [0] * 4 and tied.all()
    found, tied = ranks(same, same, torch.zeros(4), torch.zeros(4))  # all match: nothing to tie with
    assert not tied.any()


def test_half_precision_is_ranked_in_single():
    x = F.normalize(torch.randn(20, 8)).half()
    found, _ = ranks(x, x, torch.arange(20), torch.arange(20))
    assert found.tolist() == ranks(x.float(), x.float(), torch.arange(20), torch.arange(20))[0].tolist()


def test_what_has_no_rank_is_refused():
    x = torch.eye(3)
    with pytest.raises(ValueError, match="no match"):
        ranks(x, x, torch.tensor([0, 1, 7]), torch.arange(3))
    with pytest.raises(ValueError, match="finite"):
        ranks(x * torch.nan, x, torch.arange(3), torch.arange(3))


def test_recalls_by_hand():
    assert recalls(torch.tensor([0, 0, 4, 9, 10])) == {1: 40.0, 5: 60.0, 10: 80.0}


def test_order_and_folds():
    ids = torch.tensor([7, 7, 2, 9, 2, 4])
    assert distinct(ids).tolist() == [7, 2, 9, 4]
    assert [part.tolist() for part in folds(torch.arange(7), 5)] == [[0, 1], [2, 3], [4], [5], [6]]
    assert len(folds(torch.arange(3), 5)) == 3


def test_a_thousand_images_and_five_thousand_texts_are_ranked_at_once():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    images, texts = F.normalize(torch.randn(1000, 256)), F.normalize(torch.randn(5000, 256))
    image_ids, text_ids = torch.arange(1000), torch.arange(5000) // 5
    took = []
    for _ in range(3):
        start = time.process_time()
        ranks(images, texts, image_ids, text_ids)
        ranks(texts, images, text_ids, image_ids)
        took.append(time.process_time() - start)
    torch.set_num_threads(threads)
    assert min(took) < 0.3
