"""Each task's loss and scores, worked by hand on tiny examples."""

import math

import pytest
import torch
from torch.nn import functional as F

from fedapps.errors import UserError
from fedapps.losses import PCMELoss, infonce
from fedapps.models import Model, build_encoder
from fedapps.tasks import build_task


def approx(value: float):
    return pytest.approx(value, abs=1e-4)


def sure(predicted: list[int], classes: int) -> torch.Tensor:
    """Logits that predict these classes."""
    return 5.0 * F.one_hot(torch.tensor(predicted), classes).float()


# ------------------------------------------------------------------------------------- classification

TRUE = torch.tensor([0, 0, 0, 1, 1, 2])
GUESS = sure([0, 0, 1, 1, 0, 2], 4)  # recalls 2/3, 1/2, 1; class 3 nowhere


def test_classification_scores():
    scores = build_task("classification", num_classes=4).score(GUESS, TRUE)
    f1 = [2 * 2 / (3 + 3), 2 * 1 / (2 + 2), 1.0]  # 2 tp / (predicted + true)
    assert scores["accuracy"] == approx(100 * 4 / 6)
    assert scores["macro_f1"] == approx(100 * sum(f1) / 3)
    assert scores["loss"] == approx(math.log(math.exp(5) + 3) - 5 * 4 / 6)
    assert set(scores) == {"accuracy", "macro_f1", "loss"}


def test_accuracy_with_the_participant_s_own_mix():
    task = build_task("classification", num_classes=4)
    own = lambda *mix: task.score(GUESS, TRUE, mix=mix).get("accuracy_own_mix")  # noqa: E731
    assert own(3, 1, 0, 0) == approx(100 * (3 * 2 / 3 + 1 / 2) / 4)
    assert own(0.5, 0, 0.5, 0) == own(1, 0, 1, 9) == approx(100 * (2 / 3 + 1) / 2)  # class 3 has no test sample
    assert own(0, 0, 0, 1) is None


def test_the_spreading_term_moves_the_class_weights_apart():
    encoders = {"image": build_encoder("image", "cnn", 6)}
    plain, spread = (
        build_task("classification", num_classes=3),
        build_task("classification", num_classes=3, spread=0.5),
    )
    head = spread.head(encoders)
    output, target = head(torch.randn(4, 6)), torch.tensor([0, 1, 2, 0])
    v = head.weight.relu()
    wanted = plain.loss(output, target) + 0.5 * F.cross_entropy(v @ v.T, torch.arange(3))
    torch.testing.assert_close(spread.loss(output, target, head), wanted)
    (gradient,) = torch.autograd.grad(spread.loss(output.detach(), target, head), head.weight)
    assert gradient.any()


# ------------------------------------------------------------------------------------- several labels


def test_multilabel_scores():
    target = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]]).float()
    output = torch.tensor([[2.0, -1, -9], [3, 1, -9], [1, -2, -9], [-1, -3, -9]])
    scores = build_task("multilabel", num_classes=3).score(output, target)
    first = (1 / 2 + 2 / 3) / 2  # positives at places 2 and 3
    second = (1 / 1 + 2 / 3) / 2  # at places 1 and 3
    assert scores["map"] == approx(100 * (first + second) / 2)
    # label 0: tp 2, fp 1, fn 0; label 1: tp 1, fp 0, fn 1
    assert scores["macro_f1"] == approx(100 * (4 / 5 + 2 / 3) / 2)
    assert scores["micro_f1"] == approx(100 * 6 / 8)
    assert scores["labels_left_out"] == 1
    assert scores["loss"] == approx(F.binary_cross_entropy_with_logits(output, target).item())


def test_multilabel_logits_are_logits_whatever_their_range():
    output, target = (
        torch.tensor([[0.2], [0.4], [-30.0], [-40.0]]),
        torch.tensor([[1.0], [1.0], [1.0], [0.0]]),
    )
    scores = build_task("multilabel", num_classes=1).score(output, target)
    assert scores["map"] == approx(100) and scores["micro_f1"] == approx(100 * 4 / 5)
    inside = build_task("multilabel", num_classes=1).score(torch.tensor([[0.2], [0.4]]), torch.ones(2, 1))
    assert inside["micro_f1"] == 100  # 0.2 is a logit of p > 0.5, no probability
    high = torch.tensor([[30.0], [31.0]])  # both of probability 1 in single precision
    assert build_task("multilabel", num_classes=1).score(high, torch.tensor([[0.0], [1.0]]))["map"] == approx(100)


def test_without_a_positive_there_is_the_loss_alone():
    output = torch.tensor([[3.0, -1.0], [0.0, 2.0]])
    scores = build_task("multilabel", num_classes=2).score(output, torch.zeros(2, 2))
    loss = F.binary_cross_entropy_with_logits(output, torch.zeros(2, 2)).item()
    assert scores == {"loss": approx(loss), "labels_left_out": 2}


# ------------------------------------------------------------------------------------- segmentation


def test_segmentation_scores_and_ignored_pixels():
    target = torch.tensor([[[0, 0, 1, 255]], [[1, 1, 1, 0]]])
    guess = torch.tensor([[[0, 1, 1, 0]], [[1, 1, 0, 0]]])
    output = 5.0 * F.one_hot(guess, 3).permute(0, 3, 1, 2).float()
    scores = build_task("segmentation", num_classes=3).score(output, target)
    assert scores["miou"] == approx(100 * (2 / 4 + 3 / 5) / 2)  # class 2 nowhere
    assert scores["pixel_accuracy"] == approx(100 * 5 / 7)
    assert scores["loss"] == approx(math.log(math.exp(5) + 2) - 5 * 5 / 7)


def test_without_a_pixel_that_counts_there_is_no_score_and_no_loss():
    output = torch.randn(2, 3, 4, 4, requires_grad=True)
    task, void = build_task("segmentation", num_classes=3), torch.full((2, 4, 4), 255)
    assert task.score(output.detach(), void) == {}
    loss = task.loss(output, void)
    loss.backward()
    assert loss == 0 and not output.grad.any()


# ------------------------------------------------------------------------------------- retrieval


def test_retrieval_scores():
    images = torch.eye(3)
    texts = torch.tensor([[1, 0, 0], [0, 0.6, 0.8], [0, 0, 1], [0, 0.6, 0.8]])
    image_ids, text_ids = torch.tensor([5, 6, 7]), torch.tensor([5, 6, 7, 5])
    scores = build_task("retrieval").score((images, texts), (image_ids, text_ids))
    # Image 6 scores .6 with its text, and with one of 5's: a tie, in its favour.
    assert (scores["i2t_r1"], scores["i2t_r5"], scores["i2t_r10"]) == (100, 100, 100)
    # Texts 0 and 2 find theirs at once; 1 finds 7 first; 3 finds 7 and 6 first.
    assert (scores["t2i_r1"], scores["t2i_r5"]) == (50, 100)
    assert (scores["r1_sum"], scores["r10_sum"], scores["rsum"]) == (150, 200, 550)
    assert (scores["gallery_images"], scores["gallery_texts"]) == (3, 4)
    assert scores["ties"] == approx(100 / 7)
    # Three folds of one image each.
    assert scores["r1_sum_5fold"] == 200 and scores["r1_sum_all"] == 350
    assert scores["gallery_images_5fold"] == 1 and scores["gallery_texts_5fold"] == approx(4 / 3)


def test_folds_keep_all_images_and_texts_of_an_id():
    image_ids, text_ids = torch.arange(10).repeat(3), torch.arange(10)
    images = F.normalize(torch.randn(30, 4))
    scores = build_task("retrieval").score((images, images[:10]), (image_ids, text_ids))
    assert (scores["gallery_images_5fold"], scores["gallery_texts_5fold"]) == (6, 2)
    assert scores["t2i_r1"] == 100 and scores["t2i_r1_5fold"] == 100
    by_hand = []
    for fold in range(5):
        texts = images[2 * fold : 2 * fold + 2]
        rows = [i for i in range(30) if i % 10 // 2 == fold]
        by_hand += [int((images[i] @ texts.T).argmax()) == i % 10 % 2 for i in rows]
    assert scores["i2t_r1_5fold"] == approx(100 * sum(by_hand) / 30)


def test_retrieval_losses_match_by_id():
    images, texts = F.normalize(torch.randn(4, 5)), F.normalize(torch.randn(4, 5))
    ids = torch.tensor([3, 3, 1, 0])
    match = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]) > 0
    task = build_task("retrieval")
    torch.testing.assert_close(task.loss((images, texts), (ids, ids)), PCMELoss()(images, texts, match))
    assert {p.item() for p in task.parameters()} == {15}
    task = build_task("retrieval", loss="infonce", tau=0.2)
    torch.testing.assert_close(task.loss((images, texts), (ids, ids)), infonce(images, texts, 0.2, match))
    assert not list(task.parameters())


# ------------------------------------------------------------------------------------- all


@pytest.mark.parametrize(
    ("name", "options", "target"),
    [
        ("classification", {"num_classes": 3}, torch.tensor([0, 2])),
        ("multilabel", {"num_classes": 3}, torch.tensor([[0.0, 1, 1], [1, 0, 0]])),
        ("segmentation", {"num_classes": 3}, torch.zeros(2, 17, 23, dtype=torch.int64)),
        ("retrieval", {}, (torch.arange(2), torch.arange(2))),
        ("retrieval", {"loss": "infonce"}, (torch.arange(2), torch.arange(2))),
    ],
)
def test_a_loss_moves_its_encoders_and_head_and_the_primary_score_is_there(name, options, target):
    torch.manual_seed(0)
    task = build_task(name, **options)
    encoders = {"image": build_encoder("image", "cnn", 8)}
    x = torch.randint(0, 256, (2, 3, 17, 23), dtype=torch.uint8)
    if name == "retrieval":
        encoders["text"] = build_encoder("text", "bag", 8)
    model = Model(encoders, task.head(encoders))
    if name == "retrieval":
        ids = encoders["text"].tokenize(["sun", "moon"])
        output = (model.represent("image", x), model.represent("text", ids))
    elif name == "segmentation":
        output = model.head(encoders["image"].maps(x), x.shape[-2:])
    else:
        output = model.head(model.represent("image", x))
    task.loss(output, target).backward()
    unused = ("project",) if name == "segmentation" else ()
    for part in (model, task):
        assert all(p.grad.any() for n, p in part.named_parameters() if not set(unused) & set(n.split(".")))
    assert isinstance(task.score(output, target)[task.primary], float)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("clasification", {}, "did you mean 'classification'"),
        ("retrieval", {"temperature": 1}, "no option 'temperature'"),
        ("retrieval", {"loss": "triplet"}, "loss"),
        ("retrieval", {"tau": 0}, "tau: Input should be greater than 0, got 0"),
        ("classification", {}, "num_classes"),
        ("classification", {"num_classes": 1}, "num_classes"),
    ],
)
def test_mistakes_are_told_in_one_line(name, options, said):
    with pytest.raises(UserError) as error:
        build_task(name, **options)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_what_cannot_be_is_refused():
    with pytest.raises(UserError, match="image"):
        build_task("segmentation", num_classes=3).head({"text": build_encoder("text", "bag", 8)})
    for name, output, target in [
        ("classification", torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)),
        ("multilabel", torch.zeros(0, 2), torch.zeros(0, 2)),
        ("segmentation", torch.zeros(0, 2, 4, 4), torch.zeros(0, 4, 4, dtype=torch.int64)),
    ]:
        with pytest.raises(ValueError, match="empty"):
            build_task(name, num_classes=2).score(output, target)
