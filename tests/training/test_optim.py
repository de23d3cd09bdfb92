import math
import re
from itertools import pairwise

import pytest
import torch
from torch import nn

import pointvit
from pointvit.training.adapters import is_added
from pointvit.training.optim import parameter_groups, warmup_cosine
from pointvit.training.transfer import apply_transfer

LR, DECAY, SCALE = 0.1, 0.05, 0.4


@pytest.fixture(
    params=[
        ("pointvit_tiny", {"depth": 2, "num_classes": 4}),
        ("pointvit_tiny", {"depth": 1, "num_classes": 4, "layer_scale": 0.1, "global_pool": "map"}),
        ("vit_small_patch14_reg4_dinov2", {"depth": 1, "img_size": 28, "num_classes": 4}),
    ],
    ids=["points", "attention_pool", "image"],
)
def model(request) -> nn.Module:
    name, settings = request.param
    return pointvit.create_model(name, **settings)


def grouped(model: nn.Module, **options: float) -> dict[str, dict[str, float]]:
    """The group of every parameter, by name; each must be in exactly one."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[str, dict[str, float]] = {}
    for group in parameter_groups(model, LR, DECAY, **options):
        for parameter in group["params"]:
            assert names[id(parameter)] not in found
            found[names[id(parameter)]] = group
    return found


def test_every_trainable_parameter_is_in_exactly_one_group(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("blocks.0.mlp" not in name)
    groups = grouped(model)
    assert groups.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    assert not any("blocks.0.mlp" in name for name in groups)
    assert len(parameter_groups(model, LR, DECAY)) <= 4


def test_decay_is_for_weights_of_layers_alone(model):
    norms = {
        f"{name}.{parameter}"
        for name, module in model.named_modules()
        if isinstance(module, nn.LayerNorm | nn.BatchNorm1d)
        for parameter, _ in module.named_parameters(recurse=False)
    }
    apart = ("cls_token", "reg_tokens", "latent", "gamma", "bias")
    for name, group in grouped(model).items():
        free = (
            name in norms or name.endswith(apart) or name.startswith(("tokenizer.pos", "tokenizer.cls_pos"))
        )
        assert group["weight_decay"] == (0.0 if free else DECAY), name


def test_trunk_and_its_tokens_learn_at_their_own_rate(model):
    for name, group in grouped(model, trunk_lr_scale=SCALE).items():
        trunk = name.startswith("trunk.") or name in ("cls_token", "reg_tokens")
        assert group["lr"] == (LR * SCALE if trunk else LR), name


def rates(warmup: int, total: int) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = warmup_cosine(optimizer, warmup, total)
    seen = []
    for _ in range(total + 2):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def test_schedule():
    seen = rates(warmup=4, total=12)
    assert seen[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert seen[8] == pytest.approx(0.5)
    assert seen[11] == pytest.approx(0.5 * (1 + math.cos(math.pi * 7 / 8)))
    assert seen[12:] == pytest.approx([0.0, 0.0])
    assert all(later < earlier for earlier, later in pairwise(seen[4:13]))


def test_schedule_without_warmup_and_with_nothing_else():
    assert rates(warmup=0, total=4)[0] == 1.0
    assert rates(warmup=4, total=4)[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_every_group_keeps_its_own_peak():
    layers = nn.ModuleDict({"trunk": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    optimizer = torch.optim.AdamW(parameter_groups(layers, LR, DECAY, trunk_lr_scale=SCALE))
    scheduler = warmup_cosine(optimizer, 1, 10)
    optimizer.step()
    scheduler.step()
    assert {group["lr"] for group in optimizer.param_groups} == {LR, LR * SCALE}


@pytest.mark.parametrize("name", ["pointvit_tiny", "vit_tiny_patch16_224"], ids=["points", "image"])
def test_rates_decay_towards_the_tokens(name):
    model = pointvit.create_model(
        name, depth=3, embed_dim=24, num_heads=3, num_classes=4, num_reg_tokens=1, norm_pre=True
    )
    expected = {
        r"trunk\.blocks\.(\d)\..*": lambda block: SCALE * 0.5 ** (3 - int(block)),
        r"trunk\.norm\..*": lambda: SCALE,
        r"trunk\.norm_pre\..*|cls_token|reg_tokens": lambda: SCALE * 0.5**4,
        r"tokenizer\..*": lambda: 0.5**4 if name.startswith("vit") else 1.0,
        r"head\..*": lambda: 1.0,
    }
    for parameter, group in grouped(model, trunk_lr_scale=SCALE, layer_decay=0.5).items():
        [factor] = [
            f(*m.groups()) for pattern, f in expected.items() if (m := re.fullmatch(pattern, parameter))
        ]
        assert group["lr"] == pytest.approx(LR * factor), parameter


@pytest.mark.parametrize("mode", ["lora", "adapter", "prompt"])
def test_layers_that_were_added_learn_at_the_full_rate(mode):
    model = pointvit.create_model("pointvit_tiny", depth=2, embed_dim=24, num_heads=3, num_classes=4)
    apply_transfer(model, mode)
    groups = grouped(model, trunk_lr_scale=SCALE, layer_decay=0.5)
    added = {name for name in groups if is_added(name)}
    assert added == {name for name in groups if name.startswith("trunk.")} != set()
    for name in added:
        assert groups[name]["lr"] == LR
        decayed = not name.endswith(("bias", "prompts"))
        assert groups[name]["weight_decay"] == (DECAY if decayed else 0.0), name
