"""Few-shot classification: n-way k-shot episodes from fixed seeds, and their score on frozen features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pointvit.data.dataset import DataError, PointCloudDataset
from pointvit.statistics import Interval, mean_interval

FOLDS, QUERIES = 10, 20
PROTOCOL = ((5, 10), (5, 20), (10, 10), (10, 20))
"""The (way, shot) pairs that papers on point clouds report, each over ten episodes of 20 queries a class."""


@dataclass(frozen=True)
class Episode:
    """A classification task: ``support`` to learn from, ``query`` to be scored on.

    Attributes:
        classes: (way,) labels of the data set; the position of a class is its label within the episode.
        support: (way * shot,) rows, class by class.
        query: (way * queries,) rows, class by class; of the other split where one was given.
    """

    classes: np.ndarray
    support: np.ndarray
    query: np.ndarray


@dataclass(frozen=True)
class FewShot:
    """``shot`` shapes of each of ``way`` classes to learn from, ``queries`` others of each to be scored on.

    (way, shot, fold) is the seed, so that an episode is named by three numbers and does not depend on the
    seed of a training. The choice of classes and support does not depend on the queries.
    """

    way: int = 5
    shot: int = 10
    fold: int = 0
    queries: int = QUERIES

    def __post_init__(self) -> None:
        if self.way < 2 or min(self.shot, self.queries) < 1 or self.fold < 0:
            raise ValueError(
                "an episode needs at least 2 classes, 1 shot, 1 query and a fold from 0, got "
                f"way={self.way}, shot={self.shot}, queries={self.queries}, fold={self.fold}"
            )

    def episode(self, labels: np.ndarray, query_labels: np.ndarray | None = None) -> Episode:
        """Draws from labels (N,); queries from the same shapes, never one of the support, or another split.

        Raises:
            DataError: if there are too few classes, or too few shapes in one.
        """
        spare = 0 if query_labels is not None else self.queries
        classes, support = self.draw_support(labels, spare)
        if query_labels is None:
            return Episode(classes, support, self.draw_queries(labels, classes, taken=support))
        return Episode(classes, support, self.draw_queries(query_labels, classes))

    def draw_support(self, labels: np.ndarray, spare: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """``(N,) -> (way,), (way * shot,)``: classes that have ``spare`` shapes left, and rows of each."""
        random = self._random(0)
        names, sizes = np.unique(labels, return_counts=True)
        large = names[sizes >= self.shot + spare]
        if len(large) < self.way:
            raise DataError(
                f"a {self.way}-way {self.shot}-shot episode needs {self.way} classes of at least "
                f"{self.shot + spare} shapes, and {len(large)} of {len(names)} have so many"
            )
        classes = random.permutation(large)[: self.way]
        return classes, _rows(labels, classes, self.shot, random)

    def draw_queries(
        self, labels: np.ndarray, classes: np.ndarray, taken: Sequence[int] | np.ndarray = ()
    ) -> np.ndarray:
        """``(N,), (way,) -> (way * queries,)`` rows of the classes, none of which is ``taken``."""
        free = np.array(labels)
        free[np.asarray(taken, dtype=np.int64)] = -1
        return _rows(free, classes, self.queries, self._random(1))

    def split(self, data: PointCloudDataset) -> tuple[PointCloudDataset, PointCloudDataset]:
        """The episode's support out of a training split, and what is left of its classes, with new labels."""
        labels = data.labels.numpy()
        classes, rows = self.draw_support(labels)
        others = np.setdiff1d(np.flatnonzero(np.isin(labels, classes)), rows)
        return _relabelled(data, rows, classes), _relabelled(data, others, classes)

    def query_set(self, train: PointCloudDataset, test: PointCloudDataset) -> PointCloudDataset:
        """The episode's queries out of the test split; its classes are those of its support."""
        classes, _ = self.draw_support(train.labels.numpy())
        return _relabelled(test, self.draw_queries(test.labels.numpy(), classes), classes)

    def _random(self, stream: int) -> np.random.RandomState:
        # RandomState, because NumPy promises its numbers for good: an episode is the same in ten years.
        return np.random.RandomState([self.way, self.shot, self.fold, stream])


def make_episodes(
    labels: np.ndarray,
    way: int,
    shot: int,
    queries: int = QUERIES,
    folds: int = FOLDS,
    query_labels: np.ndarray | None = None,
) -> list[Episode]:
    """The episodes of folds 0 to ``folds - 1``; see :class:`FewShot`."""
    each = (FewShot(way, shot, fold, queries) for fold in range(folds))
    return [few.episode(np.asarray(labels), query_labels) for few in each]


Classifier = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""``support features (S, D), labels (S,), query features (Q, D) -> labels (Q,)``"""


def few_shot_accuracy(
    features: np.ndarray,
    labels: np.ndarray,
    episodes: Sequence[Episode],
    query_features: np.ndarray | None = None,
    query_labels: np.ndarray | None = None,
    classifier: Classifier | None = None,
) -> Interval:
    """Mean accuracy over episodes with its 95 % interval, from frozen ``features`` (N, D) of labels (N,).

    Args:
        features: of an encoder, computed once for all shapes.
        labels: that the episodes were drawn from.
        episodes: of :func:`make_episodes`; at least two, for an interval.
        query_features: (M, D) of the split that queries come from, where it is another.
        query_labels: (M,) of that split.
        classifier: the nearest class mean by cosine, unless another function is given.
    """
    if (query_features is None) != (query_labels is None):
        raise ValueError("query_features and query_labels belong together; give both or neither")
    others = features if query_features is None else query_features
    truth = np.asarray(labels if query_labels is None else query_labels)
    for of, count in ((features, len(labels)), (others, len(truth))):
        if len(of) != count or not np.isfinite(of).all():
            raise ValueError(f"expected finite features of {count} shapes, one for each label, got {len(of)}")
    classify = classifier or nearest_class_mean
    accuracies = []
    for episode in episodes:
        support = np.asarray(labels)[episode.support]
        guess = classify(features[episode.support], support, others[episode.query])
        accuracies.append(float((guess == truth[episode.query]).mean()))
    return mean_interval(accuracies)


def nearest_class_mean(support: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """``(S, D), (S,), (Q, D) -> (Q,)``: the class whose mean is nearest, by cosine (Snell et al. 2017)."""
    support, queries = (x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-12) for x in (support, queries))
    classes = np.unique(labels)
    means = np.stack([support[labels == label].mean(axis=0) for label in classes])
    means /= np.linalg.norm(means, axis=1, keepdims=True).clip(1e-12)
    return classes[(queries @ means.T).argmax(axis=1)]


def _rows(labels: np.ndarray, classes: np.ndarray, count: int, random: np.random.RandomState) -> np.ndarray:
    chosen = []
    for label in classes:
        members = np.flatnonzero(labels == label)
        if len(members) < count:
            raise DataError(f"class {label} has {len(members)} shapes to draw from, {count} are needed")
        chosen.append(random.permutation(members)[:count])
    return np.concatenate(chosen)


def _relabelled(data: PointCloudDataset, rows: np.ndarray, classes: np.ndarray) -> PointCloudDataset:
    """These shapes, whose labels become their positions in ``classes``."""
    chosen = data.subset(rows)
    position = {int(label): i for i, label in enumerate(classes)}
    labels = torch.tensor([position[label] for label in chosen.labels.tolist()])
    names = [data.class_names[int(label)] for label in classes]
    return PointCloudDataset(chosen.points, labels, names, chosen.names, chosen.up_axis)
