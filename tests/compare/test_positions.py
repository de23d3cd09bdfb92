"""Position similarity on tables whose structure is known, and rank correlation against SciPy's."""

import math
import pickle

import pytest
import torch

import pointvit
from pointvit.compare import (
    SimilarityByDistance,
    grid_structure,
    position_similarity,
    position_table,
    rank_correlation,
)
from pointvit.model import ViT
from pointvit.positions import sincos_2d

SMALL = {"embed_dim": 48, "depth": 1, "num_heads": 3, "num_classes": 0}


def image_encoder(randomise, **settings) -> ViT:
    settings = {"img_size": (48, 80), **SMALL, **settings}
    return randomise(pointvit.create_model("vit_tiny_patch16_224", **settings)).eval()


def point_encoder(randomise) -> ViT:
    made = pointvit.create_model("pointvit_tiny", num_groups=8, group_size=4, head="linear", **SMALL)
    return randomise(made).eval()


@pytest.mark.parametrize("kind", ["learned", "learned_2d", "sincos_2d"])
@pytest.mark.parametrize("centered", [False, True])
def test_similarity_is_the_cosine_of_two_patches(randomise, kind, centered):
    encoder = image_encoder(randomise, pos_embed=kind)
    with torch.no_grad():
        rows = encoder.tokenizer(torch.zeros(1, 3, 48, 80)).pos[0]
    rows = rows - rows.mean(0) if centered else rows
    found = position_similarity(encoder, centered=centered)
    assert found.shape == (3, 5, 3, 5)
    for a, b in ((0, 0), (1, 7), (14, 3)):
        cosine = torch.cosine_similarity(rows[a], rows[b], dim=0)
        torch.testing.assert_close(found[a // 5, a % 5, b // 5, b % 5], cosine)
    torch.testing.assert_close(position_table(encoder)[1, 2], encoder.tokenizer._positions((3, 5))[0, 7])
    assert not found.requires_grad


@pytest.mark.parametrize("centered", [False, True])
def test_similarity_of_points_is_a_function_of_their_centres(randomise, centered):
    encoder, points = point_encoder(randomise), torch.randn(2, 30, 3)
    tokens = encoder.tokenizer(points)
    found = position_similarity(encoder, tokens.centers, centered)
    rows = tokens.pos - tokens.pos.mean(1, keepdim=True) if centered else tokens.pos
    expected = torch.cosine_similarity(rows[:, :, None], rows[:, None], dim=-1)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)
    assert not found.requires_grad


def test_structure_of_a_table_of_rows_and_columns(randomise):
    """Learned 2D positions are a row's and a column's part by construction, random ones are neither."""
    table = position_table(image_encoder(randomise, pos_embed="learned_2d", img_size=(112, 160)))
    found = grid_structure(table)
    assert found.rows_and_columns == pytest.approx(1.0, abs=1e-6)
    assert found.line_advantage > 0.3
    random = grid_structure(torch.randn(7, 10, 2000))
    assert random.by_chance == pytest.approx(15 / 69)
    assert random.rows_and_columns == pytest.approx(random.by_chance, abs=0.01)
    assert abs(random.line_advantage) < 0.02
    assert abs(random.rank_correlation) < 0.1
    assert random.neighbours == pytest.approx(-1 / 69, abs=0.01)


def test_structure_of_a_table_that_falls_with_distance():
    place = torch.cartesian_prod(torch.arange(9.0), torch.arange(12.0))
    frequencies = torch.randn(2, 4000) * 0.3
    phases = place @ frequencies
    smooth = torch.cat([phases.sin(), phases.cos()], dim=1).reshape(9, 12, -1)
    found = grid_structure(smooth)
    assert found.neighbours > 0.9 > 0 > found.far
    assert found.rank_correlation < -0.8
    assert found.line_advantage < 0.1, "it falls alike in all directions"
    assert found.by_chance + 0.2 < found.rows_and_columns < 0.9
    sincos = grid_structure(sincos_2d((9, 12), 64).reshape(9, 12, 64))
    assert sincos.rows_and_columns == pytest.approx(1.0, abs=1e-6)
    assert sincos.line_advantage > 0.2


def test_neighbours_and_far_are_what_they_say():
    table = torch.randn(4, 5, 7, dtype=torch.float64)
    flat = table.reshape(20, 7)
    flat = torch.nn.functional.normalize(flat - flat.mean(0), dim=1)
    neighbours, far = [], []
    for a in range(20):
        for b in range(a):
            apart = math.dist(divmod(a, 5), divmod(b, 5))
            if apart == 1:
                neighbours.append(float(flat[a] @ flat[b]))
            if apart >= math.hypot(4, 5) / 2:
                far.append(float(flat[a] @ flat[b]))
    found = grid_structure(table)
    assert len(neighbours) == 31
    assert found.neighbours == pytest.approx(sum(neighbours) / len(neighbours))
    assert found.far == pytest.approx(sum(far) / len(far))


def test_rank_correlation_is_scipys():
    stats = pytest.importorskip("scipy.stats")
    x = torch.randn(200)
    y = (x + torch.randn(200)).round()
    assert len(y.unique()) < 20
    for a, b in ((x, y), (y, y.square()), (x, x.exp()), (x, -x)):
        expected = stats.spearmanr(a.numpy(), b.numpy()).statistic
        assert rank_correlation(a, b) == pytest.approx(expected, abs=1e-6)
    assert rank_correlation(x, x.exp()) == pytest.approx(1.0)
    assert math.isnan(rank_correlation(x, torch.ones(200)))


def test_curve_over_objects():
    """Similarity 1 - d / 4: the curve passes through it and every object's rank correlation is -1."""
    places = torch.nn.functional.normalize(torch.randn(7, 20, 3), dim=-1) * torch.rand(7, 20, 1)
    similarity = 1 - torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist") / 4
    curve = SimilarityByDistance(reach=2.0, bins=10)
    for part in torch.arange(7).split(3):
        curve.update(similarity[part], places[part])
    found = curve.result()
    assert found.edges.tolist() == pytest.approx([0.2 * i for i in range(11)])
    assert int(found.pairs.sum()) == 7 * 190
    known = found.pairs > 0
    middle = (found.edges[:-1] + found.edges[1:]) / 2
    assert ((found.similarity - (1 - middle / 4))[known].abs() < 0.026).all()
    assert found.similarity[~known].isnan().all()
    assert float(found.rank_correlation.mean) == pytest.approx(-1.0)
    assert found.rank_correlation.count == 7


def test_pairs_beyond_the_reach_and_objects_in_one_place():
    places = torch.tensor([[[0.0, 0], [0.5, 0], [9, 0]], [[1.0, 1], [1, 1], [1, 1]]])
    similarity = torch.tensor([[1.0, 0.8, 0.1], [0.8, 1, 0.2], [0.1, 0.2, 1]]).expand(2, -1, -1)
    curve = SimilarityByDistance(reach=1.0, bins=4)
    curve.update(similarity, places)
    found = curve.result()
    assert found.pairs.tolist() == [3, 0, 1, 0]
    assert found.rank_correlation.count == 1, "the second object has no distances to rank"
    assert float(found.similarity[2]) == pytest.approx(0.8)


def test_memory_does_not_grow_with_the_objects():
    curve, sizes = SimilarityByDistance(), []
    for _ in range(5):
        for _ in range(10):
            curve.update(torch.randn(5, 6, 6), torch.randn(5, 6, 3))
        sizes.append(len(pickle.dumps(curve)))
    assert max(sizes) - min(sizes) < 64, "counters become a byte longer, nothing else"


def test_misuse_is_refused(randomise):
    image, points = image_encoder(randomise), point_encoder(randomise)
    with pytest.raises(ValueError, match="a table of positions: centers is for point encoders"):
        position_similarity(image, torch.zeros(1, 4, 3))
    with pytest.raises(ValueError, match=r"pass centers of shape \(B, G, 3\).*got None"):
        position_similarity(points)
    with pytest.raises(ValueError, match="no position embeddings"):
        position_similarity(image_encoder(randomise, pos_embed="none"))
    with pytest.raises(ValueError, match="a point encoder has no table"):
        position_table(points)
    with pytest.raises(ValueError, match="at least 3 rows and columns"):
        grid_structure(torch.randn(2, 9, 4))
    with pytest.raises(ValueError, match="must match"):
        SimilarityByDistance().update(torch.zeros(2, 4, 5), torch.zeros(2, 4, 3))
    with pytest.raises(ValueError, match="reach > 0 and bins >= 1"):
        SimilarityByDistance(reach=0)
