"""Transfer modes: what changes in a step and what must not, layers by their formulas, merging, saving."""

import copy
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

import pointvit
from pointvit.checkpoints import CheckpointError
from pointvit.checkpoints.files import read_torch
from pointvit.checkpoints.saving import load_training_checkpoint
from pointvit.cli import main
from pointvit.data.module import PointCloudDataModule
from pointvit.training import TRANSFER_MODES, PointClassifier, apply_transfer, merge_transfer
from pointvit.training.adapters import LoRALinear
from pointvit.training.cli import quiet

Randomise = Callable[..., nn.Module]
TRUNK = {"embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 4, "layer_scale": 0.5}
POINTS = {**TRUNK, "num_groups": 8, "group_size": 4, "width": 16, "head": "linear"}
TOKENIZER_AND_HEAD = r"tokenizer\..*|(pool|fc_norm|pre_logits|head)\..*"
ROWS = {
    # mode: (options, pattern of the names of all that learns)
    "full": ({}, ".*"),
    "frozen": ({}, TOKENIZER_AND_HEAD),
    "head": ({}, r"(pool|fc_norm|pre_logits|head)\..*"),
    "norm": ({}, TOKENIZER_AND_HEAD + r"|trunk\.(norm|norm_pre|blocks\.\d\.(norm1|norm2|\w+\.norm))\..*"),
    "bias": ({}, TOKENIZER_AND_HEAD + r"|trunk\..*bias"),
    "lora": ({"rank": 2}, TOKENIZER_AND_HEAD + r"|trunk\.blocks\.\d\.attn\.(qkv|proj)\.lora_[ab]"),
    "adapter": (
        {"bottleneck": 4},
        TOKENIZER_AND_HEAD + r"|trunk\.blocks\.\d\.adapter\.(up|down)\.(weight|bias)",
    ),
    "prompt": ({"count": 3}, TOKENIZER_AND_HEAD + r"|trunk\.blocks\.\d\.prompts"),
    "blocks": ({"k": 2}, TOKENIZER_AND_HEAD + r"|trunk\.(blocks\.[12]|norm)\..*"),
}
INERT = {"tokenizer.embed.first.0.bias", "tokenizer.embed.second.0.bias"}
"""Biases before a batch norm, which takes them away again: their gradient is zero but for rounding."""
MODES = [pytest.param(mode, options, id=mode) for mode, (options, _) in ROWS.items()]


@pytest.fixture(autouse=True)
def _quiet():
    with quiet():
        yield


def points(**more) -> pointvit.ViT:
    return pointvit.create_model("pointvit_tiny", **{**POINTS, **more})


def image(**more) -> pointvit.ViT:
    return pointvit.create_model("vit_tiny_patch16_224", **{**TRUNK, "img_size": 32, **more})


def inputs(model: pointvit.ViT, seed: int = 1) -> Tensor:
    shape = (4, 3, 32, 32) if model.config.modality == "image" else (4, 32, 3)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def step(model: pointvit.ViT) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    nn.functional.cross_entropy(model(inputs(model)), torch.arange(4)).backward()
    optimizer.step()


def short_trainer(folder: Path, max_epochs: int = 1) -> pl.Trainer:
    return pl.Trainer(
        max_epochs=max_epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        default_root_dir=folder,
    )


def test_every_mode_has_a_row_here():
    assert list(ROWS) == list(TRANSFER_MODES)


@pytest.mark.parametrize(
    "build",
    [
        points,
        lambda: points(swiglu=True, attn_norm=True, mlp_norm=True, norm_pre=True, pos_mode="every_block"),
        lambda: points(layer_scale=None, global_pool="map", num_reg_tokens=2, token_dim=8),
        image,
    ],
    ids=["points", "gated", "attention_pool", "image"],
)
@pytest.mark.parametrize(("mode", "options"), MODES)
def test_exactly_the_named_parameters_change_in_a_step(
    mode: str, options: dict, build: Callable[..., pointvit.ViT], randomise: Randomise
):
    model = build().train()
    names = apply_transfer(model, mode, **options)
    randomise(model)
    before = snapshot(model)
    step(model)
    after = model.state_dict()
    parameters = dict(model.named_parameters())
    meant = [name for name in parameters if re.fullmatch(ROWS[mode][1], name)]
    assert names == meant == [name for name, p in parameters.items() if p.requires_grad]
    changed = {name for name in parameters if not torch.equal(before[name], after[name])}
    assert changed - INERT == set(meant) - INERT
    assert changed <= set(meant)
    if "tokenizer.embed.first.1.weight" in parameters:
        moved = not torch.equal(
            before["tokenizer.embed.first.1.running_var"], after["tokenizer.embed.first.1.running_var"]
        )
        assert moved == (mode != "head")


@pytest.mark.parametrize(("mode", "options"), MODES)
def test_everything_frozen_is_the_same_to_the_last_bit_after_an_epoch(
    mode: str, options: dict, clouds: Path, tmp_path: Path
):
    data = PointCloudDataModule("modelnet40", str(clouds), 64, batch_size=12, val_fraction=0.25)
    module = PointClassifier(
        settings={**POINTS, "drop_path_rate": 0.3}, lr=0.05, transfer=mode, transfer_options=options
    )
    module.build(data, "fit")
    before = snapshot(module.model)
    short_trainer(tmp_path).fit(module, data)
    changed = {n for n, t in module.model.state_dict().items() if not torch.equal(before[n], t)}
    statistics = {n for n in before if re.search("running_|num_batches", n)}
    learning = {n for n, p in module.model.named_parameters() if p.requires_grad}
    assert changed - statistics - INERT == learning - INERT
    assert changed - statistics <= learning
    assert changed & statistics == (set() if mode == "head" else statistics)


def test_added_layers_change_nothing_at_first_but_prompts():
    model = points().eval()
    x = inputs(model)
    with torch.no_grad():
        before = model(x)
        for mode in ("lora", "adapter"):
            changed = copy.deepcopy(model)
            apply_transfer(changed, mode)
            torch.testing.assert_close(changed(x), before, rtol=0, atol=0)
        apply_transfer(model, "prompt")
        assert not torch.allclose(model(x), before)


def test_tokenizer_learns_or_not_as_asked():
    model = points().train()
    names = apply_transfer(model, "norm", tokenizer=False)
    assert not any(name.startswith("tokenizer.") for name in names)
    assert not any(m.training for m in model.tokenizer.modules() if isinstance(m, nn.BatchNorm1d))
    assert any(name.startswith("tokenizer.") for name in apply_transfer(model, "norm"))
    assert all(m.training for m in model.modules())


def test_a_mode_gives_way_to_another():
    model = points()
    apply_transfer(model, "head")
    names = apply_transfer(model, "blocks=1")
    assert names == apply_transfer(model, "blocks", k=1)
    assert len(apply_transfer(model, "full")) == len(list(model.parameters()))


def test_lora_by_its_formula(randomise: Randomise):
    layer = nn.Linear(5, 7)
    low = randomise(LoRALinear(layer, rank=3, alpha=6.0))
    x = torch.randn(2, 4, 5)
    expected = layer(x) + 2.0 * (x @ low.lora_a.T) @ low.lora_b.T
    torch.testing.assert_close(low(x), expected, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_prompts_stand_before_the_tokens_and_are_new_in_every_block(randomise: Randomise):
    model = points().eval()
    plain = copy.deepcopy(model)
    apply_transfer(model, "prompt", count=3)
    randomise(model)
    own = model.state_dict()
    plain.load_state_dict({name: own[name] for name in plain.state_dict()})
    x = torch.randn(2, 9, 24)
    expected = x
    for i, block in enumerate(plain.trunk.blocks):
        prompts = own[f"trunk.blocks.{i}.prompts"].expand(2, -1, -1)
        expected = block(torch.cat([prompts, expected], dim=1))[:, 3:]
    torch.testing.assert_close(model.trunk(x), plain.trunk.norm(expected), rtol=1e-5, atol=1e-5)
    weights = model.trunk.attention_weights(x)
    assert [w.shape for w in weights] == [(2, 3, 9, 9)] * 3
    torch.testing.assert_close(torch.stack(weights).sum(dim=-1), torch.ones(3, 2, 3, 9))


MERGED = {
    "lora": ({"rank": 4, "alpha": 3}, {}),
    "lora of the MLPs": ({"rank": 2, "mlp": True, "alpha": 1}, {"qkv_bias": False}),
    "lora, gated": ({"rank": 2, "mlp": True, "alpha": 1.0}, {"swiglu": True, "mlp_norm": True}),
    "adapter": ({"bottleneck": 5}, {}),
    "adapter, no LayerScale": ({"bottleneck": 5, "scale": 2}, {"layer_scale": None, "mlp_ratio": 2.5}),
    "adapter, gated": ({"bottleneck": 5}, {"swiglu": True}),
    "adapter, CLIP": ({"bottleneck": 5}, {"activation": "quick_gelu", "norm_pre": True}),
}


@pytest.mark.parametrize("case", MERGED)
@torch.no_grad()
def test_merging_gives_a_plain_model_of_the_same_outputs(case: str, randomise: Randomise, tmp_path: Path):
    options, settings = MERGED[case]
    model, mode = points(**settings), re.split(r"\W", case)[0]
    names = [(name, parameter.requires_grad) for name, parameter in model.named_parameters()]
    apply_transfer(model, mode, **options)
    randomise(model).eval()
    x = inputs(model)
    expected = model(x)
    merge_transfer(model)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-5)
    assert [(name, parameter.requires_grad) for name, parameter in model.named_parameters()] == names
    assert type(model.trunk.blocks[0]).__name__ == "Block"
    assert (model.config.trunk == model.trunk.config, model.meta.transfer) == (True, {})
    again = pointvit.load(pointvit.save(model, tmp_path / "model"))
    assert torch.equal(again(x), model(x))
    apply_transfer(model, mode, **options)


@pytest.mark.parametrize("mode", ["lora", "adapter", "prompt"])
@torch.no_grad()
def test_a_pair_has_its_layers_once(mode: str, randomise: Randomise, tmp_path: Path):
    pair = pointvit.create_pair("vit_tiny_patch16_224", **{**TRUNK, "img_size": 32, "num_groups": 8})
    names = apply_transfer(pair, mode)
    randomise(pair).eval()
    assert any(name.startswith("image.trunk.") for name in names)
    assert {"image.tokenizer.proj.weight", "points.head.8.weight"} <= set(names)
    assert pair.points.trunk is pair.image.trunk
    images, clouds = inputs(pair.image), inputs(pair.points)
    expected = pair.image(images), pair.points(clouds)
    if mode != "prompt":
        merge_transfer(pair)
    again = pointvit.load(pointvit.save(pair, tmp_path / "pair"))
    torch.testing.assert_close((again.image(images), again.points(clouds)), expected, rtol=0, atol=1e-5)
    assert again.points.trunk is again.image.trunk
    assert again.points.config.trunk == again.image.config.trunk


@pytest.mark.parametrize("mode", ["lora", "adapter", "prompt"])
@torch.no_grad()
def test_saved_with_its_layers_a_model_is_loaded_with_them(mode: str, randomise: Randomise, tmp_path: Path):
    model = points()
    apply_transfer(model, mode)
    randomise(model).eval()
    folder = pointvit.save(model, tmp_path / "model")
    again, x = pointvit.load(folder), inputs(model)
    assert again.meta.transfer == model.meta.transfer
    assert torch.equal(again(x), model(x))
    with pytest.raises(CheckpointError, match=rf"holds the layers of transfer mode {mode} .*merge_transfer"):
        pointvit.create_model("auto", folder, num_classes=2)
    with pytest.raises(ValueError, match=rf"no place for the layers of transfer mode {mode}; call"):
        pointvit.save_checkpoint(again, tmp_path / "a.safetensors", source="pointvit")
    assert not (tmp_path / "a.safetensors").exists()


@pytest.mark.parametrize("bad", [{"mode": "lorra"}, {"mode": "lora", "rank": 10**9}, {"rank": 2}, 7])
def test_a_description_of_layers_that_are_not_is_refused(bad: object, tmp_path: Path):
    model = points()
    apply_transfer(model, "lora")
    model.meta.transfer = bad
    folder = pointvit.save(model, tmp_path / "model")
    with pytest.raises(CheckpointError, match="does not describe a model"):
        pointvit.load(folder)


@pytest.mark.parametrize("mode", ["lora", "prompt"])
def test_fit_test_and_predict(mode: str, options: list[str], tmp_path: Path, capsys, monkeypatch):
    run = tmp_path / "runs" / "version_0"
    assert main(["fit", *options, "--model.transfer", mode, "--trainer.max_epochs", "1"]) == 0
    best = run / "checkpoints" / "best.ckpt"
    model = load_training_checkpoint(best)
    trained = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("trunk."))
    trained += sum(p.numel() for n, p in model.named_parameters() if re.search("lora|prompts", n))
    trained -= 24  # the class token
    assert f"parameters, {trained:,} trained" in capsys.readouterr().err
    assert main(["test", *options, "--ckpt_path", str(best)]) == 0
    x = inputs(model)
    saved = pointvit.load(run / "model")
    with torch.no_grad():
        torch.testing.assert_close(saved(x), model(x), rtol=0, atol=1e-5)
    assert bool(saved.meta.transfer) == (mode == "prompt")
    np.savetxt(tmp_path / "cloud.xyz", x[0].numpy())
    assert main(["predict", str(run / "model"), str(tmp_path / "cloud.xyz")]) == 0
    # Lightning's command line takes the options of the training that it goes on with.
    last = run / "checkpoints" / "last.ckpt"
    assert main(["fit", *options, "--ckpt_path", str(last), "--trainer.max_epochs", "2"]) == 0
    assert f"parameters, {trained:,} trained" in capsys.readouterr().err
    described = read_torch(tmp_path / "runs" / "version_2" / "checkpoints" / "last.ckpt")["pointvit"]
    assert described["meta"]["transfer"]["mode"] == mode


def test_another_mode_cannot_go_on_with_a_training(clouds: Path, tmp_path: Path):
    data = PointCloudDataModule("modelnet40", str(clouds), 64, batch_size=12, val_fraction=0.25)
    trainer = short_trainer(tmp_path)
    trainer.fit(PointClassifier(settings=POINTS, transfer="lora", transfer_options={"rank": 2}), data)
    last = tmp_path / "last.ckpt"
    trainer.save_checkpoint(last, weights_only=False)
    for mode, options in (("full", {}), ("lora", {})):
        module = PointClassifier(settings=POINTS, transfer=mode, transfer_options=options)
        with pytest.raises(ValueError, match=rf"transfer=lora, .*rank=2, .*asked for is {mode}; resume with"):
            module.build(data, "fit", last)
        module.build(data, "test", last)
    again = PointClassifier(settings=POINTS, transfer="lora", transfer_options={"rank": 2})
    short_trainer(tmp_path, max_epochs=2).fit(again, data, ckpt_path=last)


BAD = {
    "unknown transfer mode 'lorra'; did you mean lora?": ("lorra", {}),
    "unknown transfer mode 'x'; known are adapter, bias, blocks, frozen, full, head, lora, norm, prompt": (
        "x",
        {},
    ),
    "unknown transfer mode 'lora=2'; did you mean lora?": ("lora=2", {}),
    "transfer mode full has no option 'rank'; it has no options": ("full", {"rank": 2}),
    "transfer mode norm has no option 'rank'; its options are tokenizer": ("norm", {"rank": 2}),
    "option rank of transfer mode lora must be a whole number of at least 1, got 0": ("lora", {"rank": 0}),
    "option rank of transfer mode lora must be a whole number of at least 1, got 1.5": (
        "lora",
        {"rank": 1.5},
    ),
    "option alpha of transfer mode lora must be a positive number, got True": ("lora", {"alpha": True}),
    "option mlp of transfer mode lora must be true or false, got 1": ("lora", {"mlp": 1}),
    "rank must be at most 24 for this trunk, got 25": ("lora", {"rank": 25}),
    "bottleneck must be at most 96 for this trunk, got 97": ("adapter", {"bottleneck": 97}),
    "option k of transfer mode blocks must be a whole number of at least 1, got 0": ("blocks=0", {}),
    "option k of transfer mode blocks must be a whole number of at least 1, got 'two'": ("blocks=two", {}),
    "transfer mode blocks=4 asks for more blocks than the trunk's 3": ("blocks=4", {}),
    "transfer mode blocks=2 has its k in its name already; leave out the option k": ("blocks=2", {"k": 1}),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_input_gets_one_sentence_and_changes_nothing(sentence: str):
    model, (mode, options) = points(), BAD[sentence]
    before = list(model.named_parameters())
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        apply_transfer(model, mode, **options)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == [name for name, _ in before]
    assert model.meta.transfer == {}


def test_a_mode_that_trains_nothing_is_refused():
    model = points(num_classes=0)
    with pytest.raises(ValueError, match=r"head trains nothing: the model has no head \(num_classes=0\)"):
        apply_transfer(model, "head")
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(ValueError, match=r"trunk_lr_scale=0 leaves what model\.transfer=blocks=2 trains"):
        PointClassifier(transfer="blocks=2", trunk_lr_scale=0)
    PointClassifier(transfer="lora", trunk_lr_scale=0)


def test_layers_go_before_others_come():
    model = points()
    apply_transfer(model, "lora")
    for mode in ("lora", "full"):
        with pytest.raises(ValueError, match=r"has the layers of transfer mode lora .*call merge_transfer"):
            apply_transfer(model, mode)


UNMERGED = {
    "prompts cannot be merged": ("prompt", {}),
    "with a LayerNorm inside": ("adapter", {"swiglu": True, "mlp_norm": True}),
    "LayerScale is zero for some channels": ("adapter", {"layer_scale": 0.0}),
    "global_pool='map'": ("adapter", {"global_pool": "map"}),
}


@pytest.mark.parametrize("sentence", UNMERGED)
def test_what_cannot_be_merged_says_so_and_stays(sentence: str):
    mode, settings = UNMERGED[sentence]
    model = points(**settings)
    apply_transfer(model, mode)
    before = snapshot(model)
    with pytest.raises(ValueError, match=sentence):
        merge_transfer(model)
    assert model.state_dict().keys() == before.keys()
    assert model.meta.transfer["mode"] == mode


def test_the_modes_and_numbers_in_the_documentation_are_these():
    page = (Path(__file__).parents[2] / "docs" / "transfer.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w=]+)` \| (.+?) \| *(.*?) *\| ([\d,]+) \| ([\d,]+) \|$", page, re.MULTILINE)
    assert [row[0].partition("=")[0] for row in rows] == list(TRANSFER_MODES)
    for name, learns, options, in_trunk, in_all in rows:
        mode = TRANSFER_MODES[name.partition("=")[0]]
        with torch.device("meta"):
            model = pointvit.create_model("pointvit_small", head="linear", layer_scale=1e-5)
            sizes = {n: model.get_parameter(n).numel() for n in apply_transfer(model, name)}
        trunk = sum(size for n, size in sizes.items() if n.startswith(("trunk.", "cls_token")))
        assert (f"{trunk:,}", f"{sum(sizes.values()):,}") == (in_trunk, in_all), name
        assert learns == mode.learns
        said = [o if o == "tokenizer" else f"{o} {v}" for o, v in mode.options.items()]
        assert options.replace("`", "").replace("false", "False").replace("16", "16.0") == ", ".join(said)
