"""How well simple classifiers read the classes from frozen features, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pointvit.compare.retrieval import nearest
from pointvit.compare.samples import Array, Standard, as_labels, as_samples

REGULARIZATIONS = (1e-3, 1e-2, 1e-1, 1.0)
"""Values of scikit-learn's C that a linear probe chooses from, the strongest regularisation first."""
HELD_OUT = 0.2
"""Share of every class of the training objects on which C is chosen."""
MAX_ITERATIONS = 20_000
"""Standardised features converge in some hundred to two thousand."""


class ProbeResult(NamedTuple):
    """What a classifier on frozen features reaches on the test objects."""

    accuracy: float
    """Overall accuracy (OA)."""
    mean_class_accuracy: float
    """mAcc, over the classes that occur."""
    chance: float
    """What the best constant answer reaches: the share of the test objects' largest class."""
    regularization: float | None
    """The C that was used; None for nearest neighbours."""
    num_train: int
    num_test: int


class LayerProbe(NamedTuple):
    """Both probes on the features of one layer."""

    layer: int
    """Place in the list of features."""
    linear: ProbeResult
    knn: ProbeResult


def linear_probe(
    train_x: Array,
    train_y: Array,
    test_x: Array,
    test_y: Array,
    regularization: float | None = None,
    seed: int = 0,
) -> ProbeResult:
    """``(N, D), (N,), (M, D), (M,) ->`` accuracy of logistic regression on features that stay as they are.

    Features are standardised by the training objects; multinomial logistic regression with an L2 penalty
    (scikit-learn, L-BFGS). C is the one of :data:`REGULARIZATIONS` with the lowest cross-entropy on a seeded,
    class-balanced fifth of the *training* objects (their accuracy has steps and ties); then all of them are
    fitted with it. The test objects choose nothing. The result is deterministic.

    Args:
        regularization: C, where it is not to be chosen.
        seed: of the fifth that is held out.

    Raises:
        ValueError: for NaN, shapes that do not go together, fewer than two classes, a class with a single
            training object (unless C is given), or a test object of a class that was not trained.
        ImportError: without scikit-learn.
    """
    train_x, train_y, test_x, test_y = _checked(train_x, train_y, test_x, test_y)
    _check_classes(train_y, regularization)
    classes, targets = train_y.unique(return_inverse=True)
    if regularization is None:
        from pointvit.data.dataset import split_by_class  # here, as its package imports Lightning

        fit, held = (torch.from_numpy(rows) for rows in split_by_class(train_y, HELD_OUT, seed))
        found = _logits(train_x[fit], targets[fit], train_x[held], REGULARIZATIONS)
        losses = [float(F.cross_entropy(logits, targets[held])) for logits in found]
        regularization = REGULARIZATIONS[losses.index(min(losses))]
    [logits] = _logits(train_x, targets, test_x, [regularization])
    return _result(classes[logits.argmax(dim=1)], test_y, regularization, len(train_y))


def knn_probe(train_x: Array, train_y: Array, test_x: Array, test_y: Array, k: int = 5) -> ProbeResult:
    """``(N, D), (N,), (M, D), (M,) ->`` accuracy of the vote of the k nearest training objects.

    Nearest by the cosine of features standardised by the training objects: single channels of a ViT can be
    tens of times as large as the others, and would decide alone. Classes with equally many votes: the one
    whose objects are nearer in rank.

    Raises:
        ValueError: as :func:`linear_probe`, or for k beyond the number of training objects.
    """
    train_x, train_y, test_x, test_y = _checked(train_x, train_y, test_x, test_y)
    scale = Standard.of(train_x)
    neighbours = train_y[nearest(scale(test_x), scale(train_x), k)]
    # One vote each, and a remainder that decides among equals: all remainders together are less than a vote.
    votes = 1 + (k - torch.arange(k, dtype=torch.float64)) / (k + 1) ** 2
    counts = torch.zeros(len(test_x), int(train_y.max()) + 1, dtype=torch.float64)
    counts.scatter_add_(1, neighbours, votes.expand(len(test_x), -1))
    return _result(counts.argmax(dim=1), test_y, None, len(train_y))


def knn_accuracy(train_x: Array, train_y: Array, test_x: Array, test_y: Array, k: int = 5) -> float:
    """The overall accuracy of :func:`knn_probe`."""
    return knn_probe(train_x, train_y, test_x, test_y, k).accuracy


def probe_layers(
    train_layers: Sequence[Array],
    train_y: Array,
    test_layers: Sequence[Array],
    test_y: Array,
    k: int = 5,
    seed: int = 0,
) -> Iterator[LayerProbe]:
    """``L x (N, D), (N,), L x (M, D), (M,) -> L`` results, as they are ready: both curves of one modality.

    Args:
        train_layers: features of the training objects after every layer, as :func:`record` gives them, with
            the batches put together.
        k: neighbours that vote.

    Raises:
        ValueError: as :func:`linear_probe`, or for different numbers of layers.
    """
    if len(train_layers) != len(test_layers):
        raise ValueError(
            f"the training objects have features of {len(train_layers)} layers and the test objects of "
            f"{len(test_layers)}; record both with the same encoder"
        )
    for layer, (train_x, test_x) in enumerate(zip(train_layers, test_layers, strict=True)):
        linear = linear_probe(train_x, train_y, test_x, test_y, seed=seed)
        yield LayerProbe(layer, linear, knn_probe(train_x, train_y, test_x, test_y, k))


def _checked(
    train_x: Array, train_y: Array, test_x: Array, test_y: Array
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    train, test = as_samples(train_x, "train_x", fewest=2), as_samples(test_x, "test_x")
    if train.shape[1] != test.shape[1]:
        raise ValueError(
            f"a probe needs features of one width, got {train.shape[1]} in training and {test.shape[1]} in "
            "the test; take both from the same layer of the same encoder"
        )
    train_labels = as_labels(train_y, len(train), "train_y")
    test_labels = as_labels(test_y, len(test), "test_y")
    unknown = sorted(set(test_labels.tolist()) - set(train_labels.tolist()))
    if unknown:
        raise ValueError(
            f"class {unknown[0]} has test objects and no training object; both must have the same classes"
        )
    return train, train_labels, test, test_labels


def _check_classes(labels: Tensor, regularization: float | None) -> None:
    classes, counts = labels.unique(return_counts=True)
    if len(classes) < 2:
        raise ValueError(f"a linear probe needs at least two classes, all objects are of class {classes[0]}")
    if regularization is None and int(counts.min()) < 2:
        raise ValueError(
            "a linear probe needs at least two training objects of every class, to hold one out, and class "
            f"{int(classes[counts.argmin()])} has one; add objects, or pass regularization"
        )
    if regularization is not None and not 0 < regularization < float("inf"):
        raise ValueError(f"regularization must be a positive number, got {regularization}")


def _logits(
    train_x: Tensor, targets: Tensor, test_x: Tensor, regularizations: Sequence[float]
) -> list[Tensor]:
    """``(N, D), (N,), (M, D) -> [(M, K)]`` for every C; each fit begins where the one before ended."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise ImportError(f"a linear probe needs scikit-learn: pip install scikit-learn ({error})") from error
    scale = Standard.of(train_x)
    x, test = scale(train_x).numpy(), scale(test_x).numpy()
    model = LogisticRegression(max_iter=MAX_ITERATIONS, warm_start=True)
    found = []
    for regularization in regularizations:
        logits = torch.from_numpy(
            model.set_params(C=regularization).fit(x, targets.numpy()).decision_function(test)
        )
        # Of two classes scikit-learn gives the second one's logit alone.
        found.append(logits if logits.ndim == 2 else torch.stack([torch.zeros_like(logits), logits], dim=1))
    return found


def _result(predicted: Tensor, labels: Tensor, regularization: float | None, num_train: int) -> ProbeResult:
    from pointvit.training.metrics import Scores  # here, as its package imports Lightning

    classes = int(max(predicted.max(), labels.max())) + 1
    confusion = torch.zeros(classes, classes, dtype=torch.int64)
    confusion.index_put_((labels, predicted), torch.tensor(1), accumulate=True)
    scores = Scores.of(confusion)
    return ProbeResult(
        accuracy=scores.overall_accuracy,
        mean_class_accuracy=scores.mean_class_accuracy,
        chance=int(labels.bincount().max()) / len(labels),
        regularization=regularization,
        num_train=num_train,
        num_test=len(labels),
    )
