import copy

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Generator, Tensor

from pointvit.data import mixing
from pointvit.data.mixing import Mixing, PointCutMix, RSMix

EVERY = [
    PointCutMix("random", probability=1.0),
    PointCutMix("nearest", beta=0.4, probability=1.0),
    RSMix(probability=1.0),
    RSMix(beta=2.0, probability=1.0, max_share=0.2),
]
CLASSES = 5


def seeded(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def batch(size: int = 16, count: int = 64, channels: int = 4) -> tuple[Tensor, Tensor]:
    """Clouds of radius 1 whose last channel is the number of the cloud they are of, and their labels."""
    points = torch.randn(size, count, channels, generator=seeded(9))
    points[..., :3] /= points[..., :3].norm(dim=2).amax(dim=1)[:, None, None]
    points[..., -1] = torch.arange(size, dtype=points.dtype)[:, None]
    return points, torch.arange(size) % CLASSES


def origin(mixed: Tensor) -> Tensor:
    return mixed[..., -1].long()


def test_every_mixing_is_tested_here():
    kinds = {kind for kind in vars(mixing).values() if isinstance(kind, type) and issubclass(kind, Mixing)}
    assert {type(mix) for mix in EVERY} == kinds - {Mixing}


@pytest.mark.parametrize("mix", EVERY, ids=repr)
def test_targets_are_the_counted_shares_of_the_points(mix):
    points, labels = batch()
    before = copy.deepcopy((points, labels))
    mixed, targets = mix(points, labels, CLASSES, seeded())
    assert torch.equal(points, before[0])
    assert torch.equal(labels, before[1])
    assert (mixed.shape, mixed.dtype) == (points.shape, points.dtype)
    counted = torch.zeros(len(points), CLASSES)
    for row, source in enumerate(origin(mixed)):
        for cloud in source.tolist():
            counted[row, labels[cloud]] += 1 / points.shape[1]
    torch.testing.assert_close(targets, counted, atol=1e-6, rtol=0)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(len(points)), atol=1e-6, rtol=0)
    assert (targets.gt(0.01).sum(dim=1) == 2).any(), "something was mixed"


@pytest.mark.parametrize("mix", EVERY, ids=repr)
def test_at_most_two_clouds_meet_and_what_stays_is_unchanged(mix):
    points, labels = batch()
    mixed, _ = mix(points, labels, CLASSES, seeded())
    for row, source in enumerate(origin(mixed)):
        assert len(set(source.tolist()) - {row}) <= 1
        stays = source == row
        if len(set(source.tolist())) > 1:
            assert torch.equal(mixed[row][stays], points[row][stays])


@pytest.mark.parametrize("mix", EVERY, ids=repr)
def test_repr_reproduces_the_call_and_randomness_is_the_generators(mix):
    again = eval(repr(mix), vars(mixing))
    assert again == mix
    points, labels = batch()
    first = mix(points, labels, CLASSES, seeded(1))
    state = torch.get_rng_state()
    second = again(points, labels, CLASSES, seeded(1))
    assert torch.equal(torch.get_rng_state(), state), "a generator that is given is the only one used"
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], mix(points, labels, CLASSES, seeded(2))[0])
    torch.manual_seed(5)
    drawn = mix(points, labels, CLASSES)
    torch.manual_seed(5)
    assert torch.equal(mix(points, labels, CLASSES)[0], drawn[0])


def test_random_takes_points_from_everywhere_and_nearest_a_region():
    points, labels = batch(count=200)
    spread = {}
    for kind in ("random", "nearest"):
        mixed, targets = PointCutMix(kind, probability=1.0)(points, labels, CLASSES, seeded(3))
        rows = [row for row in range(16) if 0.1 < targets[row].max() < 0.9]
        came = [mixed[row][origin(mixed)[row] != row][:, :3] for row in rows]
        stayed = [mixed[row][origin(mixed)[row] == row][:, :3] for row in rows]
        spread[kind] = np.mean([(a.mean(0) - b.mean(0)).norm() for a, b in zip(came, stayed, strict=True)])
    assert spread["nearest"] > 3 * spread["random"]


def test_nearest_cuts_both_clouds_at_the_same_place():
    points, labels = batch(size=2, count=50, channels=4)
    mix = PointCutMix("nearest", probability=1.0)
    for seed in range(10):
        mixed, _ = mix(points, labels, CLASSES, seeded(seed))
        gone = origin(mixed)[0] == 1
        if not 0 < gone.sum() < 50:
            continue
        came = {tuple(point) for point in mixed[0][gone].tolist()}
        places = points[0, :, :3]
        # One point of the cloud explains both cuts: what went is nearest to it here, what came is there.
        explained = [
            set(torch.cdist(place[None], places)[0].argsort()[: gone.sum()].tolist())
            == set(torch.nonzero(gone)[:, 0].tolist())
            and {
                tuple(points[1, i].tolist())
                for i in torch.cdist(place[None], points[1, :, :3])[0].argsort()[: gone.sum()]
            }
            == came
            for place in places
        ]
        assert any(explained)


def test_a_rigid_subset_keeps_its_shape():
    points, labels = batch(size=2, count=60)
    checked = 0
    for seed in range(20):
        mixed, _ = RSMix(probability=1.0)(points, labels, CLASSES, seeded(seed))
        moved = origin(mixed)[0] == 1
        if moved.sum() < 3 or moved.all():
            continue
        arrived = mixed[0][moved][:, :3]
        other = points[1, :, :3]
        # One shift, and the same, takes every point that arrived to a point of the other cloud.
        shifts = arrived[0] - other
        gaps = (arrived - shifts[:, None])[:, :, None] - other
        assert (gaps.norm(dim=3).amin(dim=2) < 1e-5).all(dim=1).any()
        checked += 1
    assert checked >= 5


def test_the_share_of_a_rigid_subset_is_limited():
    points, labels = batch(count=100)
    mixed, _ = RSMix(beta=50.0, probability=1.0, max_share=0.1)(points * 0.3, labels, CLASSES, seeded())
    came = (origin(points * torch.tensor([1, 1, 1, 1.0])) != (mixed[..., -1] / 0.3).round().long()).sum(dim=1)
    assert came.max() == 10


def test_probability_is_the_share_of_clouds_that_are_mixed():
    points, labels = batch(size=2000, count=8)
    mixed, _ = PointCutMix("random", probability=0.3)(points, labels, CLASSES, seeded())
    share = (origin(mixed) != torch.arange(2000)[:, None]).any(dim=1).float().mean()
    assert abs(share - 0.3) < 0.05
    unmixed, targets = RSMix(probability=0.0)(points, labels, CLASSES, seeded())
    assert torch.equal(unmixed, points)
    assert torch.equal(targets, torch.nn.functional.one_hot(labels, CLASSES).float())


@pytest.mark.parametrize("beta", [0.5, 1.0, 3.0])
def test_shares_are_drawn_from_the_beta_distribution(beta):
    drawn = mixing._beta(torch.zeros(2000, 1, 3), beta, seeded())[:, 0].numpy()
    assert stats.kstest(drawn, stats.beta(beta, beta).cdf).pvalue > 0.01


def test_a_batch_of_one_and_equal_points():
    points, labels = batch(size=1, count=5)
    for mix in EVERY:
        mixed, targets = mix(points, labels, CLASSES, seeded())
        assert targets.tolist() == [[1.0, 0, 0, 0, 0]]
        assert mix(torch.zeros(3, 4, 3), torch.tensor([0, 1, 2]), CLASSES, seeded())[0].abs().max() == 0
        assert mixed.isfinite().all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PointCutMix("middle"), "kind must be one of random, nearest, got 'middle'"),
        (lambda: PointCutMix(beta=0), "beta must be positive, got 0"),
        (lambda: RSMix(beta=float("inf")), "beta must be positive, got inf"),
        (lambda: RSMix(probability=1.5), r"probability must lie in \[0, 1\], got 1.5"),
        (lambda: RSMix(max_share=0), r"max_share must lie in \(0, 1\], got 0"),
    ],
)
def test_wrong_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
