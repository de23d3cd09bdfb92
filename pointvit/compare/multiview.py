"""Point clouds classified by an image encoder, from rendered views: the baseline of a point encoder.

A linear probe on frozen features, with everything chosen on a part of the training split::

    from pointvit import create_model
    from pointvit.compare import Views, image_baseline
    from pointvit.data import PointCloudDataModule

    data = PointCloudDataModule("modelnet40", root=ROOT, shapes_per_class=10)
    encoder = create_model("auto", pretrained=PATH)
    found = image_baseline(encoder, data.dataset("train"), data.dataset("val"), Views(num_views=3, size=112))
    print(found.linear.accuracy, found.linear.num_train, found.linear.num_test)

Fine-tuning is :class:`pointvit.compare.multiview_training.MultiViewTraining`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from pointvit.compare.drift import image_encoder_on
from pointvit.compare.probes import ProbeResult, knn_probe, linear_probe
from pointvit.compare.record import with_random_weights
from pointvit.compare.samples import Array
from pointvit.export.parts import in_eval
from pointvit.model import ViT
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.views import Mode, Rig, UpAxis, check_view_size, normalize_images, render_points

if TYPE_CHECKING:  # its package imports Lightning
    from pointvit.data.dataset import PointCloudDataset

POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean(dim=1),
    "max": lambda x: x.amax(dim=1),  # Su et al. 2015, MVCNN
}
ViewPool = Literal["mean", "max"]
BATCH_IMAGES = 64
"""Images that go through the encoder at a time."""


@dataclass(frozen=True)
class Views:
    """How clouds are turned into images; see :func:`pointvit.views.render_points`."""

    num_views: int = 10
    size: int = 224
    """Side of the square images, in pixels; a multiple of the encoder's patch size."""
    mode: Mode = "normal"
    """``normal`` tells a DINOv2-type encoder more of ModelNet40's classes than ``shaded``."""
    rig: Rig = "circle"
    perspective: bool = False
    up_axis: UpAxis = "z"
    """The vertical axis of the clouds."""


class Baseline(NamedTuple):
    """What an image encoder knows of the classes of point clouds, with what it rests on."""

    linear: ProbeResult
    knn: ProbeResult
    views: Views
    pool: str


def render_for(encoder: ViT, points: Tensor, views: Views) -> Tensor:
    """``(B, P, 3+) -> (B, V, 3, H, W)``: rendered views with the colours normalised as the encoder expects.

    Raises:
        ValueError: for an encoder that does not take such images, or bad settings of the views.
    """
    check_views(encoder, views)
    images = render_points(
        points,
        views.num_views,
        views.size,
        views.mode,
        up_axis=views.up_axis,
        rig=views.rig,
        perspective=views.perspective,
    )
    return normalize_images(images, encoder)


def check_views(encoder: ViT, views: Views) -> None:
    """Raises ValueError unless the encoder takes square images of three channels and this size."""
    tokenizer = encoder.config.tokenizer
    if not isinstance(tokenizer, ImageTokenizerConfig) or tokenizer.in_chans != 3:
        raise ValueError(
            "views need an encoder of images with three channels, got one of "
            f"{encoder.config.modality} with {tokenizer.in_chans}"
        )
    check_view_size("the size of the views", views.size, tokenizer)


def view_features(
    encoder: ViT,
    points: Tensor,
    views: Views = Views(),
    pool: ViewPool | None = "mean",
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """``(N, P, 3+) -> (N, F)`` float32 on the CPU, or ``(N, V, F)`` of the single views for ``pool=None``.

    The features are what the encoder's head is applied to. Clouds are rendered and encoded a few at a time,
    on the encoder's device, in eval mode and without gradients; the encoder is left in the mode it was in.

    Args:
        points: clouds centred in the unit sphere, on any device.
        pool: over the views, ``mean`` or ``max``.
        progress: called with the number of clouds done, after every chunk.

    Raises:
        ValueError: as :func:`render_for`, for an unknown pool, or features that are not finite.
    """
    if pool is not None:
        check_pool(pool)
    check_views(encoder, views)
    if not len(points):
        raise ValueError("there are no clouds to look at")
    device = next(encoder.parameters()).device
    step = max(1, BATCH_IMAGES // max(1, views.num_views))
    found = []
    with in_eval(encoder):
        for start in range(0, len(points), step):
            by_view = _encode(encoder, points[start : start + step].to(device), views)
            found.append((by_view if pool is None else POOLINGS[pool](by_view)).float().cpu())
            done = start + len(by_view)
            if not bool(found[-1].isfinite().all()):
                raise ValueError(
                    f"clouds {start} to {done - 1}: the encoder's features are not finite; its weights are "
                    "beyond what its precision holds, or not numbers themselves"
                )
            if progress is not None:
                progress(done)
    return torch.cat(found)


def image_baseline(
    encoder: ViT,
    train: PointCloudDataset,
    test: PointCloudDataset,
    views: Views = Views(),
    pool: ViewPool = "mean",
    k: int = 5,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Baseline:
    """Linear probe and nearest neighbours of an image encoder on views of labelled clouds.

    Args:
        train, test: clouds centred in the unit sphere. To choose views, pool or encoder, let ``test`` be a
            held-out part of the training split (``PointCloudDataModule.dataset("val")``).
        views: their ``up_axis`` must be the data's.
        k: neighbours that vote.
        seed: of what :func:`linear_probe` holds out to choose its regularisation.
        progress: called with the number of clouds done, of all in ``train`` and ``test``.

    Raises:
        ValueError: as :func:`view_features` and :func:`linear_probe`, or for data of other classes or axes.
    """
    if train.class_names != test.class_names:
        raise ValueError("the two data sets have different classes; both must come from the same data set")
    if {train.up_axis, test.up_axis} != {views.up_axis}:
        raise ValueError(
            f"the clouds are {train.up_axis} up and {test.up_axis} up, the views {views.up_axis} up; pass "
            f"Views(up_axis={train.up_axis!r})"
        )
    later = None if progress is None else _shifted(progress, len(train))
    train_x = view_features(encoder, train.points, views, pool, progress)
    test_x = view_features(encoder, test.points, views, pool, later)
    data: tuple[Array, Array, Array, Array] = (train_x, train.labels, test_x, test.labels)
    return Baseline(linear_probe(*data, seed=seed), knn_probe(*data, k), views, pool)


def image_probe_drift(
    image: ViT,
    tuned: ViT,
    train: PointCloudDataset,
    test: PointCloudDataset,
    views: Views = Views(),
    pool: ViewPool = "mean",
    k: int = 5,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Baseline]:
    """Whether a trunk that was tuned on points still sees images: :func:`image_baseline` three times.

    ``before``: of the image encoder; ``after``: of its tokenizer on the trunk and tokens of the point encoder
    ``tuned``; ``random``: of the same architecture with random weights, which is what nothing learned gives.

    Args:
        progress: called with the number of clouds done, of all in ``train`` and ``test`` three times over.

    Raises:
        ValueError: as :func:`image_baseline` and :func:`image_encoder_on`.
    """
    encoders = {
        "before": image,
        "after": image_encoder_on(image, tuned),
        "random": with_random_weights(image, seed),
    }
    found = {}
    for i, (name, encoder) in enumerate(encoders.items()):
        step = None if progress is None else _shifted(progress, i * (len(train) + len(test)))
        found[name] = image_baseline(encoder, train, test, views, pool, k, seed, step)
    return found


class MultiViewClassifier(nn.Module):
    """``(B, P, 3+) -> (B, num_classes)``: an image encoder and its head on the pooled features of the views.

    It has no parameters but the encoder's, so that ``pointvit.save(classifier.encoder, folder)`` saves it.
    """

    def __init__(self, encoder: ViT, views: Views = Views(), pool: ViewPool = "mean") -> None:
        """``encoder``: of images, with a head for the classes of the clouds (``reset_classifier``)."""
        super().__init__()
        check_pool(pool)
        check_views(encoder, views)
        if encoder.num_classes == 0:
            raise ValueError(
                "a classifier needs a head, and this encoder has none: encoder.reset_classifier(num_classes)"
            )
        self.encoder, self.views, self.pool = encoder, views, pool

    def forward(self, points: Tensor) -> Tensor:
        return view_logits(self.encoder, points, self.views, self.pool)


def view_logits(encoder: ViT, points: Tensor, views: Views, pool: str) -> Tensor:
    """``(B, P, 3+) -> (B, num_classes)``: the encoder's head on the pooled features of the views."""
    return encoder.head(POOLINGS[pool](_encode(encoder, points, views)))


def _encode(encoder: ViT, points: Tensor, views: Views) -> Tensor:
    """``(B, P, 3+) -> (B, V, F)``: what the head is applied to, of every view."""
    images = rearrange(render_for(encoder, points, views), "b v c h w -> (b v) c h w")
    images = images.to(next(encoder.parameters()).dtype)
    features = encoder.forward_head(encoder.forward_features(images), pre_logits=True)
    return rearrange(features, "(b v) f -> b v f", b=len(points))


def _shifted(progress: Callable[[int], None], by: int) -> Callable[[int], None]:
    return lambda count: progress(by + count)


def check_pool(pool: str) -> None:
    if pool not in POOLINGS:
        raise ValueError(f"pool must be one of {', '.join(POOLINGS)}, got {pool!r}")
