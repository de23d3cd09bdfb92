"""Predicting: the model's own frame, whatever the file's."""

from pathlib import Path

import numpy as np
import pytest
import torch

import pointvit
from pointvit import inference
from pointvit.inference import Answer, answers, load_cloud, outcomes, predict

CLASSES = ["chair", "lamp", "table"]


@pytest.fixture
def model(randomise):
    model = pointvit.create_model("pointvit_tiny", num_classes=3, depth=2, num_groups=8, group_size=8)
    randomise(model)
    model.meta.class_names, model.meta.num_points = CLASSES, 64
    return model.eval()


@pytest.fixture
def cloud() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(64, 3)) * (1.0, 2.0, 3.0)


def same(one, other) -> None:
    assert [name for name, _ in one] == [name for name, _ in other]
    np.testing.assert_allclose([p for _, p in one], [p for _, p in other], atol=1e-5)


def test_answer_is_sorted_and_complete(model, cloud):
    answer = model.predict(cloud, top=5)
    assert sorted(name for name, _ in answer) == CLASSES
    assert [p for _, p in answer] == sorted((p for _, p in answer), reverse=True)
    assert sum(p for _, p in answer) == pytest.approx(1.0, abs=1e-5)
    assert model.predict(cloud, top=1) == answer[:1]


def test_y_up_copy_gives_the_same_answer_when_the_axis_is_given(model, cloud):
    x, y, z = cloud.T
    y_up = np.stack([x, z, -y], axis=1)
    [turned], [own] = predict(model, [y_up], up="y"), predict(model, [cloud], up="z")
    same(turned, own)
    [lying] = predict(model, [y_up], up="z")
    assert lying[0][1] != pytest.approx(own[0][1], abs=1e-4), "the axis must matter"


def test_auto_takes_the_surer_axis_and_says_which(model, cloud):
    by_axis = {axis: predict(model, [cloud], up=axis)[0] for axis in ("y", "z")}
    surer = max(by_axis, key=lambda axis: by_axis[axis][0][1])
    [answer] = answers(model, [cloud], up="auto")
    assert answer.up_axis == surer
    same(answer.classes, by_axis[surer])


def test_model_trained_y_up_is_the_mirror_case(model, cloud):
    model.meta.up_axis = "y"
    x, y, z = cloud.T
    [own] = predict(model, [np.stack([x, z, -y], axis=1)])
    same(predict(model, [cloud], up="z")[0], own)
    assert predict(model, [cloud])[0][0][1] != pytest.approx(own[0][1], abs=1e-4), "the axis must matter"


def test_place_and_scale_do_not_matter_even_at_survey_size(model, cloud):
    same(model.predict(100 * cloud + 7_691_239.55), model.predict(cloud))


def test_file_and_array_agree(model, cloud, tmp_path: Path):
    np.savetxt(tmp_path / "a b.xyz", cloud, fmt="%.9f")
    same(model.predict(tmp_path / "a b.xyz"), model.predict(cloud))
    same(model.predict(torch.from_numpy(cloud)), model.predict(cloud))


def test_large_clouds_are_thinned_to_what_the_model_was_trained_on(model):
    dense = np.random.default_rng(1).normal(size=(5000, 3))
    assert load_cloud(model, dense).shape == (64, 3)
    assert model.predict(dense) == model.predict(dense)


def test_points_that_are_not_finite_are_dropped(model, cloud):
    dirty = np.concatenate([cloud, [[np.nan, 0, 0], [0, np.inf, 0]]])
    same(model.predict(dirty), model.predict(cloud))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_points(model, cloud, count):
    assert all(np.isfinite(p) for _, p in model.predict(cloud[:count]))


def test_mode_is_left_as_it_was(model, cloud):
    model.train()
    model.predict(cloud)
    assert model.training
    assert all(not torch.isnan(b).any() for b in model.buffers() if b.is_floating_point())


def test_normals_are_required_by_a_model_that_has_them(cloud, tmp_path: Path):
    model = pointvit.create_model("pointvit_tiny", in_chans=6, depth=1, num_groups=4, group_size=4)
    np.savetxt(tmp_path / "plain.xyz", cloud)
    with pytest.raises(ValueError, match="normals"):
        model.predict(tmp_path / "plain.xyz")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (np.zeros((0, 3)), "P >= 1"),
        (np.zeros((4, 2)), r"\(P, 3\)"),
        (np.zeros(3), r"\(P, 3\)"),
        (np.full((4, 3), np.nan), "NaN"),
    ],
)
def test_bad_clouds(model, bad, words):
    with pytest.raises(ValueError, match=words):
        model.predict(bad)


def test_bad_options(model, cloud):
    with pytest.raises(ValueError, match="up must be"):
        predict(model, [cloud], up="w")
    with pytest.raises(ValueError, match="top"):
        predict(model, [cloud], top=0)
    with pytest.raises(FileNotFoundError):
        model.predict("nowhere.off")
    with pytest.raises(ValueError, match="classifier"):
        pointvit.create_model("vit_tiny_patch16_224").predict(cloud)
    with pytest.raises(ValueError, match="num_classes=0"):
        pointvit.create_model("pointvit_tiny", num_classes=0).predict(cloud)


def test_few_points_and_dropped_points_are_told(model, cloud, tmp_path: Path, caplog):
    model.predict(cloud)
    assert not caplog.messages
    dirty = np.concatenate([cloud[:20], np.full((3, 3), np.nan)])
    np.savetxt(tmp_path / "dirty.xyz", dirty)
    for source, name in ((dirty, "the cloud"), (tmp_path / "dirty.xyz", str(tmp_path / "dirty.xyz"))):
        caplog.clear()
        model.predict(source)
        assert caplog.messages == [
            f"{name}: points that are NaN or infinite were left out: 3",
            f"{name}: has 20 points, the model was trained on 64",
        ]


def test_an_answer_that_is_no_number_is_refused(model, cloud):
    model.trunk.norm.weight.data[0] = torch.nan
    with pytest.raises(ValueError, match="the cloud: the model's answer is not a number"):
        model.predict(cloud)


@pytest.mark.parametrize("source", [None, np.array(["a", "b"]), [[0, 0, 0], [1, 1]]])
def test_what_is_no_cloud(model, source):
    with pytest.raises(ValueError, match=r"a path or numbers of shape \(P, 3\)"):
        model.predict(source)


def test_half_precision_clouds(model, cloud):
    rounded = torch.from_numpy(cloud).bfloat16()
    same(model.predict(rounded), model.predict(rounded.double()))


@pytest.mark.parametrize("up", ["auto", "y"])
def test_a_batch_of_any_size_gives_each_cloud_its_own_answer(model, up):
    counts = (64, 10, 64, 80, 10, 3, 64, 64, 10)
    clouds = [np.random.default_rng(i).normal(size=(count, 3)) for i, count in enumerate(counts)]
    alone = [next(answers(model, [cloud], up=up)) for cloud in clouds]
    for batch_size in (1, 2, 64):
        together = list(answers(model, clouds, up=up, batch_size=batch_size))
        assert [answer.num_points for answer in together] == [min(count, 64) for count in counts]
        for one, other in zip(alone, together, strict=True):
            assert one.up_axis == other.up_axis
            torch.testing.assert_close(one.probabilities, other.probabilities, atol=1e-6, rtol=0)
            torch.testing.assert_close(one.embedding, other.embedding, atol=1e-5, rtol=0)


def test_answers_do_not_depend_on_the_batch_to_the_last_digit(model, monkeypatch):
    clouds = [np.random.default_rng(i).normal(size=(90 if i % 2 else 64, 3)) for i in range(21)]
    expected = list(answers(model, clouds, batch_size=64))
    passes = []
    forward = model.forward_features
    monkeypatch.setattr(model, "forward_features", lambda x: passes.append(len(x)) or forward(x))
    for batch_size in (1, 5, 33):
        found = list(answers(model, clouds[::-1], batch_size=batch_size))[::-1]
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one.probabilities, other.probabilities)
            assert torch.equal(one.embedding, other.embedding)
    assert set(passes) == {inference.TOGETHER}


def test_clouds_of_ever_other_sizes_do_not_wait_for_the_last(model):
    drawn = []

    class Sizes(list):
        def __iter__(self):
            for count in range(1, 60):
                drawn.append(count)
                yield np.random.default_rng(count).normal(size=(count, 3))

    first = next(answers(model, Sizes(), batch_size=2))
    assert first.num_points == 1
    assert len(drawn) < 20


def test_an_error_stands_in_the_place_of_its_source(model, cloud, caplog):
    found = list(outcomes(model, [cloud, "nowhere.off", cloud[:20], np.zeros((0, 3)), cloud], batch_size=2))
    kinds = [Answer, FileNotFoundError, Answer, ValueError, Answer]
    assert [type(outcome) for outcome in found] == kinds
    assert caplog.messages == ["the cloud: has 20 points, the model was trained on 64"]
    same(found[0].classes, found[4].classes)
    with pytest.raises(FileNotFoundError):
        predict(model, [cloud, "nowhere.off", cloud])


def test_far_off_points_are_told(model, caplog):
    far = np.concatenate([np.random.default_rng(0).normal(size=(60, 3)), [[300.0, 0, 0]]])
    model.predict(far)
    assert caplog.messages == [
        "the cloud: 1 point lies far off; without it the radius would be 1% of what it is"
    ]


def test_a_batch_holds_at_least_one_cloud(model, cloud):
    for size in (0, 1.5):
        with pytest.raises(ValueError, match="batch_size must be"):
            predict(model, [cloud], batch_size=size)
