"""Retrieval on planted data, where every rank is known."""

import math

import pytest
import torch

from pointvit.compare import cross_modal_retrieval, fit_pair_map, nearest, retrieval_recall


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def orthogonal(dim: int, seed: int = 0) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(dim, dim, generator=generator(seed), dtype=torch.float64))[0]


def test_the_same_features_find_themselves_at_any_scale():
    x = torch.randn(30, 8)
    found = retrieval_recall(x, 7 * x)
    assert [found[f"recall@{k}"] for k in (1, 5, 10)] == [1.0, 1.0, 1.0]
    assert [found[f"chance@{k}"] for k in (1, 5, 10)] == pytest.approx([1 / 30, 5 / 30, 10 / 30])


def test_ranks_are_counted_exactly():
    """On a circle, object i's own point is the (i + 1)th from its query."""
    angles = torch.arange(6).double() * 0.1
    gallery = torch.stack([angles.cos(), angles.sin()], dim=1)
    found = retrieval_recall(gallery[:1].expand(6, -1), gallery, ks=range(1, 7))
    for k in range(1, 7):
        assert found[f"recall@{k}"] == k / 6


def test_a_shift_of_all_pairs_finds_nothing():
    x = torch.eye(10)
    found = retrieval_recall(x, x.roll(1, dims=0), ks=(1, 9, 10))
    assert found["recall@1"] == 0
    # All the others are equally far, and the own object comes behind those.
    assert found["recall@9"] == 0
    assert found["recall@10"] == 1


def test_features_that_tell_nothing_apart_find_nothing():
    constant = torch.full((20, 5), 0.1)
    noise = 1e-13 * torch.randn(20, 5, dtype=torch.float64)
    for gallery in (constant, constant + noise, torch.zeros(20, 5)):
        found = retrieval_recall(constant, gallery, ks=(1, 19))
        assert (found["recall@1"], found["recall@19"]) == (0, 0)


def test_unrelated_features_reach_chance():
    found = retrieval_recall(*torch.randn(2, 2000, 32, generator=generator()))
    for k in (1, 5, 10):
        spread = math.sqrt(k / 2000 / 2000)
        assert abs(found[f"recall@{k}"] - found[f"chance@{k}"]) < 4 * spread


def test_any_object_of_the_class_counts_with_labels():
    labels = torch.arange(4).repeat(5)
    x = torch.eye(4)[labels] + 0.01 * torch.randn(20, 4)
    partner = x[torch.arange(20).roll(4)]
    assert retrieval_recall(x, partner)["recall@1"] < 0.5
    found = retrieval_recall(x, partner, labels=labels)
    assert found["recall@1"] == 1.0
    # Five of twenty: 1 - (15 over k) / (20 over k).
    assert found["chance@5"] == pytest.approx(1 - math.comb(15, 5) / math.comb(20, 5))
    assert retrieval_recall(x, x, labels=torch.arange(20)) == retrieval_recall(x, x)


def test_nearest_are_in_order_and_the_lower_of_equal_ones_comes_first():
    gallery = torch.tensor([[1.0, 1], [1, 0], [0, 1], [2, 0], [-1, 0]])
    assert nearest(torch.tensor([[1.0, 0]]), gallery, 5).tolist() == [[1, 3, 0, 2, 4]]
    many = torch.randn(1500, 6)
    expected = torch.nn.functional.cosine_similarity(many[:, None].double(), many[:9].double(), dim=2)
    assert torch.equal(nearest(many, many[:9], 3), expected.argsort(dim=1, descending=True)[:, :3])


def test_a_linear_relation_between_two_spaces_is_found():
    x = torch.randn(300, 20, generator=generator(), dtype=torch.float64)
    y = x @ orthogonal(20) * torch.logspace(-1, 1, 20) + 3
    result = cross_modal_retrieval(x[:100], y[:100], x[100:], y[100:])
    assert result["mapped"]["recall@1"] == 1.0
    for control in ("cosine", "permuted"):
        assert result[control]["recall@10"] < 0.25
    assert list(result) == ["cosine", "mapped", "permuted"]


def test_what_two_spaces_share_is_found_beside_what_they_do_not():
    shared = torch.randn(600, 4, generator=generator())
    a = torch.cat([shared, 3 * torch.randn(600, 12, generator=generator(1))], 1) @ orthogonal(16, 1).float()
    b = torch.cat([shared, 3 * torch.randn(600, 20, generator=generator(2))], 1) @ orthogonal(24, 2).float()
    result = cross_modal_retrieval(a[:100], b[:100], a[100:], b[100:])
    assert list(result) == ["mapped", "permuted"]
    assert result["mapped"]["recall@10"] > 0.8
    assert result["permuted"]["recall@10"] < 0.25


def test_more_channels_than_pairs_and_channels_that_are_constant_are_fine():
    hidden = torch.randn(80, 5, generator=generator())
    a, b = (
        hidden @ torch.randn(5, 200, generator=generator(1)),
        hidden @ torch.randn(5, 100, generator=generator(2)),
    )
    a[:, 7], b[:, 3] = 0.1, 1e6
    result = cross_modal_retrieval(a[:20], b[:20], a[20:], b[20:])
    assert result["mapped"]["recall@1"] > 0.9


def test_the_map_is_deterministic_and_its_shrinkage_can_be_given():
    a, b = torch.randn(2, 40, 6, generator=generator())
    first, second = fit_pair_map(a, b, seed=3), fit_pair_map(a, b, seed=3)
    assert torch.equal(first.first(a), second.first(a))
    given = fit_pair_map(a, b, shrinkage=first.shrinkage)
    assert torch.equal(given.second_weight, first.second_weight)
    assert fit_pair_map(a, b, shrinkage=7.0).shrinkage == 7.0


def test_the_map_equals_canonical_correlations_where_nothing_is_shrunk():
    """With almost no shrinkage, paired directions correlate as CCA says, and others not at all."""
    a = torch.randn(500, 4, generator=generator(), dtype=torch.float64)
    b = a @ orthogonal(4) + 0.5 * torch.randn(500, 4, generator=generator(1), dtype=torch.float64)
    pair_map = fit_pair_map(a, b, shrinkage=1e-9)
    scores = torch.cat([pair_map.first(a), pair_map.second(b)], dim=1).T
    correlation = torch.corrcoef(scores)
    qa, qb = (torch.linalg.qr(x - x.mean(0))[0] for x in (a, b))
    expected = torch.linalg.svdvals(qa.T @ qb)
    torch.testing.assert_close(correlation[:4, 4:], expected.diag(), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: retrieval_recall(x, x[:-1], ks=(1,)), "the same objects in the same order, got 12 and 11"),
        (lambda x: retrieval_recall(x, x[:, :2], ks=(1,)), "one width, got 3 for the queries and 2"),
        (lambda x: retrieval_recall(x, x, ks=(1, 13)), "between 1 and the number of objects, 12, got 13"),
        (lambda x: retrieval_recall(x, x, ks=(0,)), "got 0"),
        (lambda x: retrieval_recall(x, x / 0), "gallery: the features of 12 of 12 objects are NaN"),
        (lambda x: retrieval_recall(x, x, labels=torch.arange(3)), "labels must be 12 whole numbers"),
        (lambda x: retrieval_recall(x[:0], x[:0]), "queries: this measure needs at least 1 objects, got 0"),
        (lambda x: nearest(x, x, 13), "between 1 and the number of objects, 12"),
        (lambda x: nearest(x, x[:, :2], 1), "one width, got 3 and 2"),
        (lambda x: fit_pair_map(x[:9], x[:9]), "at least 10 objects, got 9"),
        (lambda x: fit_pair_map(x, x, shrinkage=0.0), "shrinkage must be a positive number"),
        (lambda x: cross_modal_retrieval(x, x, x[:, :2], x), "queries and fit_queries must come from"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.randn(12, 3))
