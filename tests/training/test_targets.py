import json
import logging

import numpy as np
import pytest
import torch

import pointvit
from pointvit.data import Shapes
from pointvit.training.targets import (
    MADE_FROM,
    OBJECTS,
    PATCHES,
    Scale,
    TargetStore,
    sample_patches,
)
from pointvit.training.teacher import Teacher, Views
from pointvit.views import Cameras

SIZE, PATCH = 32, 8
VIEWS = Views("shaded", 3, SIZE)
WEIGHTS = {"sha256": "0" * 64, "teacher_init": "pretrained"}


@pytest.fixture(scope="module")
def clouds(tmp_path_factory) -> torch.Tensor:
    return Shapes(tmp_path_factory.mktemp("shapes"), num_points=128, shapes_per_class=1).points[:11]


@pytest.fixture
def teacher(randomise) -> Teacher:
    model = pointvit.create_model(
        "vit_tiny_patch8_224", img_size=SIZE, embed_dim=24, depth=2, num_classes=0, num_reg_tokens=2
    )
    return Teacher(randomise(model), VIEWS)


@pytest.fixture
def store(tmp_path, teacher, clouds) -> TargetStore:
    store = TargetStore(tmp_path / "cache", teacher, WEIGHTS, clouds, patches=True)
    store.make(torch.device("cpu"), progress=False)
    return store


def test_the_teacher_gives_class_token_and_patches_of_normalised_views(teacher, clouds, monkeypatch):
    monkeypatch.setattr("pointvit.training.teacher.fast_bf16", lambda device: False)
    teacher.model.meta.image_mean, teacher.model.meta.image_std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    objects, patches = teacher(clouds)
    assert objects.shape == (11, 24)
    assert patches.shape == (11, 3, 4, 4, 24)
    images = VIEWS.render(clouds)
    mean, std = (torch.tensor(of)[:, None, None] for of in ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7)))
    views = [teacher.model.forward_features((images[:, view] - mean) / std) for view in range(3)]
    torch.testing.assert_close(objects, sum(tokens[:, 0] for tokens in views) / 3, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        patches[:, 2, 1, 3], views[2][:, 3 + 1 * 4 + 3], rtol=0, atol=1e-5, msg="behind class and registers"
    )


def test_a_teacher_without_class_token_gives_what_its_pool_gives(randomise, clouds, monkeypatch):
    monkeypatch.setattr("pointvit.training.teacher.fast_bf16", lambda device: False)
    model = pointvit.create_model(
        "vit_tiny_patch8_224",
        img_size=SIZE,
        embed_dim=24,
        depth=1,
        num_classes=0,
        class_token=False,
        global_pool="mean",
    )
    teacher = Teacher(randomise(model), VIEWS)
    objects, patches = teacher(clouds[:2])
    torch.testing.assert_close(objects, patches.mean(dim=(1, 2, 3)), rtol=0, atol=1e-5)
    assert teacher.width == 24


def test_targets_read_back_are_what_the_teacher_gives(store, teacher, clouds):
    order = torch.tensor([7, 2, 9])
    objects, patches = teacher(clouds[order])
    targets = store.read(clouds[order])
    torch.testing.assert_close(targets.objects, objects, rtol=0, atol=1e-5)
    assert targets.patches is not None
    kept = torch.from_numpy(targets.patches[targets.stored.numpy()])
    assert kept.dtype == torch.float16
    torch.testing.assert_close(kept.float(), patches, rtol=1e-3, atol=1e-3)
    files = [store.folder / name for name in (OBJECTS, PATCHES, "seen.npy")]
    header = 128
    assert sum(file.stat().st_size - header for file in files) == store.size


def test_targets_are_computed_once(store, teacher, clouds, monkeypatch):
    kept = (store.folder / OBJECTS).read_bytes()

    def never(self: Teacher, clouds: torch.Tensor) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(Teacher, "__call__", never)
    shuffled = clouds[torch.randperm(11)]
    again = TargetStore(store.folder.parent, teacher, WEIGHTS, shuffled, patches=True)
    again.make(torch.device("cpu"), progress=False)
    assert again.folder == store.folder
    assert (store.folder / OBJECTS).read_bytes() == kept
    with pytest.raises(AssertionError, match="computed again"):
        TargetStore(store.folder.parent, teacher, WEIGHTS, clouds[:5], patches=True).make(torch.device("cpu"))
    assert [folder.name for folder in store.folder.parent.iterdir()] == [store.folder.name]


def test_patches_are_added_to_a_folder_that_lacks_them(tmp_path, teacher, clouds):
    without, with_them = (TargetStore(tmp_path, teacher, WEIGHTS, clouds, patches=p) for p in (False, True))
    without.make(torch.device("cpu"))
    assert {file.name for file in without.folder.iterdir()} == {OBJECTS, MADE_FROM}
    assert with_them.folder == without.folder
    with_them.make(torch.device("cpu"))
    assert with_them.read(clouds).patches is not None


def test_every_part_of_the_key_changes_it(teacher, clouds, tmp_path, monkeypatch):
    def key(teacher: Teacher = teacher, weights=WEIGHTS, clouds: torch.Tensor = clouds) -> str:
        return TargetStore(tmp_path, teacher, weights, clouds, patches=False).folder.name

    def seen_by(*views: object) -> Teacher:
        return Teacher(teacher.model, Views(*views))

    others = [
        key(),
        key(weights={**WEIGHTS, "sha256": "1" * 64}),
        key(weights={**WEIGHTS, "teacher_init": "scratch"}),
        key(clouds=clouds[:10]),
        key(clouds=clouds + 1e-4),
        key(teacher=seen_by("depth", 3, SIZE)),
        key(teacher=seen_by("shaded", 4, SIZE)),
        key(teacher=seen_by("shaded", 3, 40)),
        key(teacher=seen_by("shaded", 10, SIZE, "ten")),
        key(teacher=seen_by("shaded", 3, SIZE, "circle", "y")),
    ]
    teacher.model.meta.image_mean = (0.4, 0.5, 0.5)
    others.append(key())
    render = Views.render
    monkeypatch.setattr(Views, "render", lambda self, clouds: 0.9 * render(self, clouds))
    others.append(key())
    assert len(set(others)) == len(others)


def test_damaged_and_unwritable_targets_are_named(store, teacher, clouds, tmp_path):
    file = store.folder / PATCHES
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot be read; delete the folder"):
        store.read(clouds)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="cannot be written"):
        TargetStore(tmp_path / "file", teacher, WEIGHTS, clouds, False).make(torch.device("cpu"))


def test_a_teacher_of_nan_is_refused_and_leaves_nothing(tmp_path, teacher, clouds):
    with torch.no_grad():
        teacher.model.trunk.norm.weight[0] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        TargetStore(tmp_path / "cache", teacher, WEIGHTS, clouds, patches=True).make(torch.device("cpu"))
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_size_is_said_and_the_folder_says_what_it_is_from(tmp_path, teacher, clouds, caplog):
    store = TargetStore(tmp_path, teacher, WEIGHTS, torch.cat([clouds, clouds[:3]]), patches=False)
    with caplog.at_level(logging.INFO, logger="pointvit"):
        store.make(torch.device("cpu"))
    assert "11 clouds, 3 views of 32 px, 0 MB" in caplog.text, "equal clouds have one target"
    said = json.loads((store.folder / MADE_FROM).read_text())
    assert said["sha256"] == WEIGHTS["sha256"]
    assert (said["mode"], said["num_views"]) == ("shaded", 3)


# Where points fall


def test_patches_are_sampled_where_the_renderer_draws_a_point():
    cameras = Cameras.from_rig(3, 64, "z", "circle")
    points = torch.tensor([[[0.5, -0.3, 0.4]]])
    from pointvit.views import render_points

    image = render_points(points, 3, 64, splat=0.0, gap=0.0)[:, :, :1]  # one bright pixel in each view
    grid = image.movedim(2, -1)  # (1, 3, 64, 64, 1): a grid as fine as the picture
    peak = image.amax()
    for view in range(3):
        seen = torch.zeros(1, 3, 1, dtype=torch.bool)
        seen[0, view] = True
        value = sample_patches(grid, points, seen, cameras)
        assert 0.25 * peak <= value.item() <= peak, "within half a pixel of it"


def test_bilinear_and_averaged_over_the_views_that_show_a_point():
    cameras = Cameras.from_rig(3, 64, "z", "circle")
    columns = torch.arange(4.0).expand(1, 3, 4, 4)
    patches = torch.stack([columns, columns.mT], dim=-1)  # the token of a patch is its own (column, row)
    points = torch.rand(1, 5, 3) - 0.5
    seen = torch.tensor([[1, 1, 0, 0, 1], [1, 0, 1, 0, 0], [1, 0, 0, 0, 1]]).bool()[None]
    expected = torch.zeros(1, 5, 2)
    pixels, _ = cameras.project(points)
    places = (pixels / 16 - 0.5).clamp(0, 3)
    for point in range(5):
        if seen[0, :, point].any():
            expected[0, point] = places[0, seen[0, :, point], point].mean(dim=0)
    torch.testing.assert_close(sample_patches(patches, points, seen, cameras), expected, rtol=0, atol=1e-5)


def test_targets_at_points_follow_rows_and_index(store, clouds):
    targets = store.read(clouds)
    assert targets.patches is not None
    assert targets.seen is not None
    rows, index = torch.tensor([4, 0]), torch.randint(128, (2, 6))
    values, shown = targets.at_points(rows, index)
    seen = VIEWS.seen(clouds)
    for i, row in enumerate(rows.tolist()):
        stored = int(targets.stored[row])
        patches = torch.from_numpy(np.array(targets.patches[stored])).float()[None]
        alone = sample_patches(
            patches, clouds[row, index[i]][None], seen[row][:, index[i]][None], targets.cameras
        )
        torch.testing.assert_close(values[i], alone[0], rtol=0, atol=1e-5)
        assert torch.equal(shown[i], seen[row][:, index[i]].any(dim=0))
    assert shown.any()


def test_scale_standardises_and_keeps_constant_channels_at_zero(store, clouds):
    values = torch.randn(50, 3) * torch.tensor([0.01, 5.0, 0.0]) + 7
    scaled = Scale.of(values)(values)
    torch.testing.assert_close(scaled.mean(dim=0), torch.zeros(3), rtol=0, atol=1e-4)
    torch.testing.assert_close(scaled.std(dim=0, correction=0), torch.tensor([1.0, 1.0, 0.0]))
    targets = store.read(clouds)
    given, shown = targets.at_points(torch.arange(11), torch.arange(64).expand(11, -1))
    scale = Scale.of_patches(targets)
    torch.testing.assert_close(scale.mean, given[shown].mean(dim=0), rtol=0, atol=1e-5)


def test_bad_views_and_teachers():
    image = pointvit.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=24, depth=1, num_classes=0)
    with pytest.raises(ValueError, match="view_size must be a multiple of the encoder's patches, 16 x 16"):
        Teacher(image, Views(size=40))
    with pytest.raises(ValueError, match=r"view_size must be at most 800 .* got 100000, as attention takes"):
        Teacher(image, Views(size=100_000))
    with pytest.raises(ValueError, match="num_views of at least 1, got 0"):
        Views(num_views=0)
    with pytest.raises(ValueError, match="mode"):
        Views(mode="photo")  # type: ignore[arg-type]
    points = pointvit.create_model("pointvit_tiny", embed_dim=24, depth=1, num_classes=0)
    with pytest.raises(ValueError, match="this one points of 3 channels"):
        Teacher(points, Views(size=32))
