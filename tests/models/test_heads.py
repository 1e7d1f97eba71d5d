import torch

from fedapps.models import LogitHead, SegmentationHead


def test_logits_are_scaled():
    head, z = LogitHead(8, 3), torch.randn(5, 8)
    torch.testing.assert_close(head(z), 10 * (z @ head.weight.T + head.linear.bias))


def test_pixel_logits_have_the_wanted_size_also_from_one_picture():
    head = SegmentationHead(12, 3).train()
    assert head(torch.randn(1, 12, 1, 1), (17, 23)).shape == (1, 3, 17, 23)
    assert head(torch.randn(2, 12, 9, 12), torch.Size((17, 23))).shape == (2, 3, 17, 23)
