import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from pointvit.data import DataError, Episode, FewShot, few_shot_accuracy, make_episodes
from pointvit.data.episodes import FOLDS, PROTOCOL, QUERIES, nearest_class_mean

LABELS = np.random.default_rng(0).permutation(np.arange(12).repeat(50))


@pytest.mark.parametrize(("way", "shot"), PROTOCOL)
def test_episodes_of_the_protocol(way, shot):
    episodes = make_episodes(LABELS, way, shot)
    assert len(episodes) == FOLDS == 10
    for episode in episodes:
        assert len(set(episode.classes)) == way
        assert LABELS[episode.support].tolist() == episode.classes.repeat(shot).tolist()
        assert LABELS[episode.query].tolist() == episode.classes.repeat(QUERIES).tolist()
        assert len(set(episode.support) | set(episode.query)) == way * (shot + 20)
    assert len({tuple(episode.support) for episode in episodes}) == 10
    again = make_episodes(LABELS, way, shot)
    for a, b in zip(episodes, again, strict=True):
        assert all((getattr(a, name) == getattr(b, name)).all() for name in ("classes", "support", "query"))


def test_an_episode_is_named_by_its_numbers():
    """Recorded indices: an episode must be the same in every version."""
    labels = np.arange(6).repeat(4)
    episode = FewShot(way=2, shot=2, fold=3, queries=1).episode(labels)
    assert [episode.classes.tolist(), episode.support.tolist(), episode.query.tolist()] == [
        [1, 4],
        [4, 6, 18, 19],
        [7, 17],
    ]
    other = FewShot(way=2, shot=2, fold=4, queries=1).episode(labels)
    assert other.support.tolist() != episode.support.tolist()


def test_queries_of_another_split():
    train, test = LABELS, np.arange(12).repeat(30)
    few = FewShot(way=5, shot=45)
    episode = few.episode(train, test)
    assert (train[episode.support] == episode.classes.repeat(45)).all()
    assert (test[episode.query] == episode.classes.repeat(20)).all()
    assert episode.support.tolist() == few.draw_support(train)[1].tolist()
    with pytest.raises(DataError, match="5 classes of at least 65 shapes, and 0 of 12 have so many"):
        few.episode(train)
    with pytest.raises(DataError, match=r"class \d+ has 30 shapes to draw from, 31 are needed"):
        FewShot(way=5, shot=45, queries=31).episode(train, test)


def test_small_classes_are_left_out():
    labels = np.repeat([0, 1, 2, 3], [30, 4, 30, 30])
    for episode in make_episodes(labels, way=3, shot=5):
        assert set(episode.classes) == {0, 2, 3}


def test_accuracy_of_separable_and_of_meaningless_features():
    rng = np.random.default_rng(1)
    episodes = make_episodes(LABELS, way=5, shot=10)
    good = np.eye(12)[LABELS] * 4 + rng.normal(size=(600, 12))
    result = few_shot_accuracy(good, LABELS, episodes)
    assert result.mean > 0.95
    assert len(result.values) == 10
    noise = few_shot_accuracy(rng.normal(size=(600, 12)), LABELS, episodes)
    assert noise.mean - 3 * noise.half < 0.2 < noise.mean + 3 * noise.half
    assert noise.std > 0

    def logistic(support, labels, queries):
        return LogisticRegression(max_iter=200).fit(support, labels).predict(queries)

    other = few_shot_accuracy(good, LABELS, episodes, classifier=logistic)
    assert other.mean > 0.95
    assert other.values != result.values


def test_queries_of_another_split_are_scored_there():
    test_labels = np.arange(12).repeat(20)
    episodes = make_episodes(LABELS, 5, 10, query_labels=test_labels)
    features = np.eye(12)
    accuracy = few_shot_accuracy(features[LABELS], LABELS, episodes, features[test_labels], test_labels)
    assert accuracy.mean == 1
    assert (
        few_shot_accuracy(features[LABELS], LABELS, episodes, features[::-1][test_labels], test_labels).mean
        < 0.5
    )
    with pytest.raises(ValueError, match="belong together"):
        few_shot_accuracy(features[LABELS], LABELS, episodes, query_labels=test_labels)


def test_features_that_do_not_fit():
    episodes = make_episodes(LABELS, 5, 10)
    for features in (np.eye(12)[LABELS][:7], np.full((len(LABELS), 2), np.nan)):
        with pytest.raises(ValueError, match=f"expected finite features of {len(LABELS)} shapes"):
            few_shot_accuracy(features, LABELS, episodes)


def test_one_episode_has_no_interval():
    with pytest.raises(ValueError, match="an interval needs at least 2 runs, got 1"):
        few_shot_accuracy(np.eye(12)[LABELS], LABELS, make_episodes(LABELS, 5, 10, folds=1))


def test_nearest_class_mean_by_hand():
    support = np.array([[2.0, 0], [9, 1], [0, 1], [0, 5]])
    queries = np.array([[1.0, 0.9], [0.9, 1], [0, 0]])
    guess = nearest_class_mean(support, np.array([7, 7, 3, 3]), queries)
    assert guess[:2].tolist() == [7, 3]
    assert isinstance(make_episodes(LABELS, 5, 10)[0], Episode)


@pytest.mark.parametrize("options", [{"way": 1}, {"shot": 0}, {"queries": 0}, {"fold": -1}])
def test_wrong_numbers(options):
    with pytest.raises(
        ValueError, match="an episode needs at least 2 classes, 1 shot, 1 query and a fold from 0"
    ):
        FewShot(**options)
