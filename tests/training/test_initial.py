"""Initial states: what is replaced, by what, and what stays."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pointvit
from pointvit.data.module import PointCloudDataModule
from pointvit.training import INITS, PointClassifier, initialise
from pointvit.training.initial import FROM_IMAGES

SETTINGS = {"num_groups": 8, "group_size": 4, "width": 16, "head": "linear"}
Randomise = Callable[..., nn.Module]


@pytest.fixture(scope="module")
def weights(tmp_path_factory, randomise: Randomise) -> Path:
    """A DINOv2-type image checkpoint with LayerScale and registers."""
    model = pointvit.create_model(
        "vit_small_patch14_reg4_dinov2", embed_dim=24, depth=2, num_heads=3, img_size=42
    )
    file = tmp_path_factory.mktemp("weights") / "image.safetensors"
    return pointvit.save_checkpoint(randomise(model), file, source="pointvit")


def points(weights: Path, **more) -> pointvit.ViT:
    torch.manual_seed(0)
    return pointvit.create_model("auto", weights, tokenizer="points", num_classes=3, **{**SETTINGS, **more})


def is_trunk(name: str) -> bool:
    return name.startswith(FROM_IMAGES)


def assert_pretrained(before: Tensor, after: Tensor, name: str) -> None:
    assert torch.equal(before, after), name


def assert_shuffled(before: Tensor, after: Tensor, name: str) -> None:
    assert torch.equal(before.flatten().sort().values, after.flatten().sort().values), name
    assert not torch.equal(before, after), name


def assert_gaussian(before: Tensor, after: Tensor, name: str) -> None:
    error = 6 * before.std() / before.numel() ** 0.5
    assert abs(after.mean() - before.mean()) < error, name
    assert abs(after.std() - before.std()) < error, name
    assert not torch.isin(after, before).any(), name


def assert_scratch(before: Tensor, after: Tensor, name: str) -> None:
    expected = 1.0 if name.endswith("gamma") or re.search(r"norm\d?\.weight", name) else 0.0
    if after.ndim == 1:
        assert torch.equal(after, torch.full_like(after, expected)), name
    elif "token" not in name:
        assert abs(after.std() - 0.02) < 0.004, name
    assert not torch.equal(before, after), name


CHECKS = {
    "pretrained": assert_pretrained,
    "scratch": assert_scratch,
    "shuffled": assert_shuffled,
    "random_gaussian_like": assert_gaussian,
}


def test_every_initial_state_has_a_row_here():
    assert tuple(CHECKS) == INITS


@pytest.mark.parametrize("init", INITS)
def test_what_came_from_the_image_checkpoint_and_nothing_else_is_replaced(init: str, weights: Path):
    model, before = points(weights), points(weights).state_dict()
    source = dict(model.meta.source)
    state = torch.get_rng_state()
    names = initialise(model, init, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert names == ([] if init == "pretrained" else [name for name in before if is_trunk(name)])
    after = model.state_dict()
    for name, tensor in before.items():
        check = CHECKS[init] if is_trunk(name) else assert_pretrained
        check(tensor, after[name], name)
    assert model.meta.source == (source if init == "pretrained" else {})
    assert model.config.trunk.layer_scale == (1.0 if init == "scratch" else 1e-5)
    assert model.trunk.config == model.config.trunk


@pytest.mark.parametrize("init", ["scratch", "shuffled", "random_gaussian_like"])
def test_the_numbers_are_a_function_of_the_seed(init: str, weights: Path):
    one, two, other = (points(weights) for _ in range(3))
    for model, seed in ((one, 1), (two, 1), (other, 2)):
        initialise(model, init, seed=seed)
    a, b, c = (model.trunk.blocks[1].mlp.fc1.weight for model in (one, two, other))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_settings_of_the_checkpoint_stay_with_a_trunk_from_scratch(weights: Path, tmp_path: Path):
    image = pointvit.load(pointvit.save(pointvit.create_model("auto", weights), tmp_path / "image"))
    model = points(weights, norm_eps=1e-5, qkv_bias=True)
    initialise(model, "scratch")
    assert model.config.trunk.norm_eps == model.trunk.norm.eps == 1e-5
    assert model.config.num_reg_tokens == image.config.num_reg_tokens == 4
    again = pointvit.load(pointvit.save(model, tmp_path / "points"))
    assert again.config == model.config


def test_positions_that_are_sampled_are_replaced_too(weights: Path):
    model, before = points(weights, pos_embed="projected"), points(weights, pos_embed="projected")
    assert "tokenizer.pos_embed.table" in initialise(model, "shuffled")
    assert_shuffled(before.tokenizer.pos_embed.table, model.tokenizer.pos_embed.table, "table")


@pytest.mark.parametrize("init", INITS)
def test_of_a_point_checkpoint_the_tokenizer_is_replaced_as_well(
    init: str, weights: Path, clouds: Path, randomise: Randomise, tmp_path: Path
):
    saved = randomise(points(weights))
    saved.reset_classifier(0)
    folder = pointvit.save(saved, tmp_path / "aligned")
    data = PointCloudDataModule("modelnet40", str(clouds), 64, val_fraction=0.25)
    module = PointClassifier("auto", str(folder), init=init)
    module.build(data, "fit")
    first = module.model.tokenizer.embed.first
    if init != "scratch":
        CHECKS[init](saved.tokenizer.embed.first[3].weight, first[3].weight, init)
    assert torch.equal(first[3].weight, saved.tokenizer.embed.first[3].weight) == (init == "pretrained")
    kept = torch.equal(first[1].running_var, saved.tokenizer.embed.first[1].running_var)
    assert kept == (init == "pretrained")
    if not kept:
        assert torch.equal(first[1].running_var, torch.ones(8))
    assert module.model.num_classes == 4


def test_trainings_that_differ_in_the_initial_state_alone_share_tokenizer_and_head(
    weights: Path, clouds: Path, caplog: pytest.LogCaptureFixture
):
    data = PointCloudDataModule("modelnet40", str(clouds), 64, val_fraction=0.25)
    states = []
    for init in INITS:
        torch.manual_seed(5)
        module = PointClassifier("auto", str(weights), SETTINGS, init=init, seed=5)
        with caplog.at_level("INFO", logger="pointvit"):
            module.build(data, "fit")
        states.append(module.model.state_dict())
    for name, tensor in states[0].items():
        others = [torch.equal(tensor, state[name]) for state in states[1:]]
        assert others == [not is_trunk(name)] * 3, name
    assert "init=shuffled in place of" in caplog.text


def test_bad_input_gets_one_sentence(weights: Path):
    with pytest.raises(ValueError, match=r"^unknown init 'shuffle'; did you mean shuffled\?$"):
        initialise(points(weights), "shuffle")
    with pytest.raises(ValueError, match=r"^unknown model\.init 'scrach'; did you mean scratch\?$"):
        PointClassifier(init="scrach")
    for init in ("shuffled", "random_gaussian_like"):
        with pytest.raises(ValueError, match=f"^model.init={init} needs model.pretrained"):
            PointClassifier(init=init)
    with pytest.raises(ValueError, match=r"^model\.calibrate_tokens needs model\.pretrained"):
        PointClassifier(calibrate_tokens=True)
    for decay in (0.0, 1.1):
        with pytest.raises(ValueError, match=rf"model\.layer_decay must lie in \(0, 1\], got {decay}"):
            PointClassifier(layer_decay=decay)
