"""Images and point clouds become tokens: values by slow definitions, and what must not change them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pointvit import layers, mini_pointnet
from pointvit.mini_pointnet import MiniPointNet
from pointvit.positions import resample_grid, sincos_2d
from pointvit.tokenizers import (
    ImageTokenizer,
    ImageTokenizerConfig,
    PointTokenizer,
    PointTokenizerConfig,
)

Randomise = Callable[..., nn.Module]
SMALL_IMAGE = ImageTokenizerConfig(img_size=(32, 48), patch_size=(8, 16))


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


def point_tokenizer(groups: int = 6, size: int = 4, channels: int = 3) -> PointTokenizer:
    return PointTokenizer(PointTokenizerConfig(groups, size, channels, width=16), 24).eval()


@torch.no_grad()
def test_a_patch_is_a_linear_map_of_its_pixels(randomise: Randomise) -> None:
    tokenizer, x = randomise(ImageTokenizer(SMALL_IMAGE, 24)), rand(2, 3, 32, 48)
    tokens = tokenizer(x)
    weight, bias = tokenizer.proj.weight.flatten(1), tokenizer.proj.bias
    for row in range(4):
        for col in range(3):
            pixels = x[:, :, 8 * row : 8 * row + 8, 16 * col : 16 * col + 16].flatten(1)
            torch.testing.assert_close(
                tokens.x[:, 3 * row + col], pixels @ weight.T + bias, rtol=1e-5, atol=1e-5
            )
            assert tokens.centers[0, 3 * row + col].tolist() == [16 * col + 8, 8 * row + 4]
    assert torch.equal(tokens.pos, tokenizer.pos_embed)


@pytest.mark.parametrize("kind", ["learned", "learned_2d", "sincos_2d", "none"])
@torch.no_grad()
def test_positions_of_images(kind: str) -> None:
    config = ImageTokenizerConfig(img_size=(32, 48), patch_size=(8, 16), pos_embed=kind)
    tokenizer = ImageTokenizer(config, 24)
    pos = tokenizer(rand(1, 3, 32, 48)).pos
    names = {name for name, _ in tokenizer.named_parameters()} - {"proj.weight", "proj.bias"}
    trained = {
        "learned": {"pos_embed", "cls_pos"},
        "learned_2d": {"pos_embed.rows", "pos_embed.cols", "cls_pos"},
        "sincos_2d": {"cls_pos"},
        "none": set(),
    }
    assert names == trained[kind]
    if kind == "none":
        assert pos is None
        return
    assert pos.shape == (1, 12, 24)
    larger = tokenizer(rand(1, 3, 64, 32))
    if kind == "sincos_2d":  # a formula, which needs no resampling
        assert torch.equal(pos, sincos_2d((4, 3), 24))
        assert torch.equal(larger.pos, sincos_2d((8, 2), 24))
    else:
        assert torch.equal(larger.pos, resample_grid(pos, (4, 3), (8, 2)))
    assert larger.x.shape == (1, 16, 24)


def test_a_hybrid_stem_shares_the_grid_of_its_patches() -> None:
    config = ImageTokenizerConfig(img_size=(64, 64), patch_size=(32, 32), stem=(1, 1))
    tokens = ImageTokenizer(config, 24)(rand(1, 3, 64, 96))
    assert tokens.x.shape == (1, 6, 24)
    assert tokens.centers[0, 1].tolist() == [48, 16]
    with pytest.raises(
        ValueError, match=r"patch_size \(4, 4\) must be a multiple of the hybrid stem's stride, 8"
    ):
        ImageTokenizer(ImageTokenizerConfig(img_size=(64, 64), patch_size=(4, 4), stem=(1, 1)), 24)


@pytest.mark.parametrize(
    "shape", [(1, 3, 33, 48), (1, 3, 32, 40), (1, 4, 32, 48), (3, 32, 48), (1, 3, 0, 48)]
)
def test_images_that_do_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\(B, 3, H, W\) with H a multiple of 8 and W of 16, got"):
        ImageTokenizer(SMALL_IMAGE, 24)(torch.zeros(shape))


def test_images_have_no_lengths() -> None:
    with pytest.raises(ValueError, match="lengths is for point clouds"):
        ImageTokenizer(SMALL_IMAGE, 24)(rand(1, 3, 32, 48), lengths=torch.tensor([1]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"img_size": (224, 230)}, r"img_size \(224, 230\) must be a multiple of patch_size \(16, 16\)"),
        ({"in_chans": 0}, "in_chans >= 1, and at least one block in each stage of a stem, got 0 and None"),
        ({"stem": (3, 0)}, r"at least one block in each stage of a stem, got 3 and \(3, 0\)"),
        ({"patch_size": (0, 16)}, "must be a multiple of patch_size"),
        ({"pos_embed": "rope"}, "pos_embed must be one of learned, learned_2d, sincos_2d, none, got 'rope'"),
    ],
)
def test_bad_image_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageTokenizerConfig(**settings)


@pytest.mark.parametrize("settings", [{"num_groups": 0}, {"group_size": 0}, {"in_chans": 2}])
def test_bad_point_settings(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="num_groups >= 1, group_size >= 1 and in_chans >= 3, got"):
        PointTokenizerConfig(**settings)


def test_groups_are_the_neighbours_of_their_centres() -> None:
    x = rand(2, 50, 6)
    neighborhoods, centers = point_tokenizer(channels=6).group(x)
    assert neighborhoods.shape == (2, 6, 4, 6)
    for b in range(2):
        assert torch.equal(centers[b, 0], x[b, 0, :3]), "sampling starts at the first point"
        for g in range(6):
            offsets = x[b, :, :3] - centers[b, g]
            nearest = offsets.square().sum(1).argsort(stable=True)[:4]
            assert torch.equal(neighborhoods[b, g, :, :3], offsets[nearest])
            assert torch.equal(neighborhoods[b, g, :, 3:], x[b, nearest, 3:]), (
                "other channels stay as they are"
            )
            assert not neighborhoods[b, g, 0, :3].any(), "the centre is its own nearest neighbour"


def test_translation_moves_the_centres_alone() -> None:
    x = (rand(2, 80, 3) * 256).round() / 256
    tokenizer, shift = point_tokenizer(), torch.tensor([512.0, -3.0, 0.25])
    neighborhoods, centers = tokenizer.group(x)
    moved, moved_centers = tokenizer.group(x + shift)
    assert torch.equal(moved, neighborhoods)
    assert torch.equal(moved_centers, centers + shift)


@torch.no_grad()
def test_survey_coordinates_in_float64_keep_their_shape() -> None:
    """Float32 has steps of 0.5 there; in float64 the groups are cut first, and cast afterwards."""
    x, tokenizer = rand(1, 80, 3, dtype=torch.float64), point_tokenizer()
    here = tokenizer(x.float())
    there = tokenizer(x + 7_691_239.55)
    assert there.x.dtype == torch.float32
    torch.testing.assert_close(there.x, here.x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("behind", [torch.nan, 1e6])
@torch.no_grad()
def test_padding_is_never_read(behind: float) -> None:
    x, lengths = rand(3, 60, 6), torch.tensor([60, 21, 3])
    for row, n in zip(x, lengths.tolist(), strict=True):
        row[n:] = behind
    tokenizer = point_tokenizer(channels=6)
    tokens = tokenizer(x, lengths)
    for row, n in enumerate(lengths.tolist()):
        single = tokenizer(x[row : row + 1, :n])
        for got, expected in zip(tokens[:3], single[:3], strict=True):
            torch.testing.assert_close(got[row : row + 1], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("points", [1, 2, 5])
def test_fewer_points_than_groups_and_neighbours(points: int) -> None:
    x = rand(1, points, 3)
    neighborhoods, centers = point_tokenizer(groups=7, size=6).group(x)
    assert [c.tolist() for c in centers[0]] == [centers[0, g % points].tolist() for g in range(7)]
    for k in range(6):
        assert torch.equal(neighborhoods[:, :, k], neighborhoods[:, :, k % points])
    assert len(centers[0].unique(dim=0)) == points


@pytest.mark.parametrize("shape", [(1, 5, 4), (5, 3), (1, 0, 3)])
def test_points_that_do_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"points must have shape \(B, P, 3\) with P >= 1, got"):
        point_tokenizer()(torch.zeros(shape))


def textbook_mini_pointnet(net: MiniPointNet, x: Tensor) -> Tensor:
    """Point-BERT's encoder as its paper draws it: the group's feature is joined to that of every point."""
    features = net.first(x.flatten(0, 2)).unflatten(0, x.shape[:3])
    largest = features.max(dim=2, keepdim=True).values.expand_as(features)
    joined = torch.cat([largest, features], dim=-1)  # the global feature first
    return net.second(joined.flatten(0, 2)).unflatten(0, x.shape[:3]).max(dim=2).values


@pytest.mark.parametrize("convolution", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("channels", [3, 6])
def test_mini_pointnet_equals_the_concatenating_form(
    training: bool, channels: int, convolution: bool, randomise: Randomise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "_amd_with_avx512", lambda: convolution)
    net = randomise(MiniPointNet(channels, 24, width=16)).train(training)
    reference = MiniPointNet(channels, 24, width=16).train(training)
    reference.load_state_dict(net.state_dict())
    x = rand(2, 5, 8, channels)
    ours, expected = net(x), textbook_mini_pointnet(reference, x)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    direction = torch.randn(ours.shape, generator=torch.Generator().manual_seed(2))
    gradients = torch.autograd.grad((ours * direction).sum(), list(net.parameters()))
    others = torch.autograd.grad((expected * direction).sum(), list(reference.parameters()))
    for (name, _), one, other in zip(net.named_parameters(), gradients, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, msg=name)
    for one, other in zip(net.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_mini_pointnet_in_pieces(randomise: Randomise, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a backward pass; the statistics of training are those of the whole batch all the same."""
    net, x = randomise(MiniPointNet(3, 24, width=16)), rand(3, 5, 8, 3)
    whole = textbook_mini_pointnet(net.eval(), x)
    monkeypatch.setattr(mini_pointnet, "_POINTS_AT_A_TIME", 20)
    torch.testing.assert_close(net(x), whole, rtol=1e-5, atol=1e-5)
    trained = textbook_mini_pointnet(net.train(), x)
    torch.testing.assert_close(net(x), trained, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.3, None])
def test_batch_norms_of_other_kinds(momentum: float | None, randomise: Randomise) -> None:
    """A running average over all batches, or a subclass (as synchronised norms are): left as they are."""

    class Other(nn.BatchNorm1d):
        pass

    for kind in (nn.BatchNorm1d, Other):
        net, reference = MiniPointNet(3, 24, width=16), MiniPointNet(3, 24, width=16)
        for one in (net, reference):
            one.first[1], one.second[1] = kind(8, momentum=momentum), kind(32, momentum=momentum)
            randomise(one)
        for _ in range(2):
            x = rand(2, 5, 8, 3)
            torch.testing.assert_close(net(x), textbook_mini_pointnet(reference, x), rtol=1e-5, atol=1e-5)
        for one, other in zip(net.buffers(), reference.buffers(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_the_default_mini_pointnet_has_point_berts_sizes() -> None:
    shapes = [tuple(p.shape) for p in MiniPointNet(3, 384).parameters() if p.ndim == 2]
    assert shapes == [(128, 3), (256, 128), (512, 512), (384, 512)]


def test_patch_dropout_leaves_out_patches_in_training_only() -> None:
    points = PointTokenizer(PointTokenizerConfig(8, 4, width=16, patch_drop_rate=0.5), 24)
    images = ImageTokenizer(ImageTokenizerConfig((32, 48), (8, 16), patch_drop_rate=0.5), 24)
    for tokenizer, x, count in ((points, rand(2, 40, 3), 8), (images, rand(2, 3, 32, 48), 12)):
        whole, some = tokenizer.eval()(x), tokenizer.train()(x)
        assert whole.x.shape[1] == count
        assert (some.x.shape[1], some.pos.shape[1], some.centers.shape[1]) == (count // 2,) * 3
        for row in range(2):
            known = whole.centers[min(row, len(whole.centers) - 1)].tolist()
            kept = some.centers[row].tolist()
            assert all(center in known for center in kept)
            assert len({tuple(center) for center in kept}) == count // 2
    with pytest.raises(ValueError, match=r"patch_drop_rate must lie in \[0, 1\), got 1.0"):
        PointTokenizerConfig(patch_drop_rate=1.0)


def test_empty_batch() -> None:
    tokens = point_tokenizer()(rand(0, 20, 3))
    assert (tokens.x.shape, tokens.pos.shape, tokens.centers.shape) == ((0, 6, 24), (0, 6, 24), (0, 6, 3))


def test_gradients_reach_the_points() -> None:
    """As saliency, attacks and a learned alignment before the tokenizer want; by finite differences."""
    tokenizer, points = point_tokenizer().double(), rand(1, 12, 3, dtype=torch.float64).requires_grad_()

    def score(x: Tensor) -> Tensor:
        tokens = tokenizer(x)
        return tokens.x.square().sum() + tokens.pos.square().sum()

    (gradient,) = torch.autograd.grad(score(points), points)
    step = torch.zeros_like(points)
    step[0, 3] = torch.tensor([1e-6, -2e-6, 1e-6], dtype=torch.float64)
    with torch.no_grad():
        difference = score(points + step) - score(points - step)
    assert difference.abs() > 1e-12
    torch.testing.assert_close(difference, 2 * (gradient * step).sum(), rtol=1e-4, atol=0)
