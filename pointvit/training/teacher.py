"""The teacher of an alignment: a frozen image encoder that looks at rendered views of clouds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from pointvit.diagnosis import fast_bf16
from pointvit.model import ViT
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.views import Cameras, Mode, Rig, UpAxis, check_view_size, render_points
from pointvit.views.shading import check_mode


@dataclass(frozen=True)
class Views:
    """The pictures of a cloud that the teacher sees; see :func:`pointvit.views.render_points`."""

    mode: Mode = "shaded"
    num_views: int = 3
    size: int = 112
    rig: Rig = "circle"
    up_axis: UpAxis = "z"

    def __post_init__(self) -> None:
        check_mode(self.mode)
        self.cameras()  # refuses rigs, sizes and numbers of views that there are not

    def cameras(self) -> Cameras:
        return Cameras.from_rig(self.num_views, self.size, self.up_axis, self.rig)

    def render(self, clouds: Tensor) -> Tensor:
        """``(B, P, 3+) -> (B, V, 3, H, W)`` in [0, 1]."""
        return self._rendered(clouds, self.mode)

    def seen(self, clouds: Tensor) -> Tensor:
        """``(B, P, 3+) -> (B, V, P)``: whether nothing hides a point, by the views' depth."""
        return self.cameras().visible(clouds, self._rendered(clouds, "depth"))

    def _rendered(self, clouds: Tensor, mode: Mode) -> Tensor:
        return render_points(clouds, self.num_views, self.size, mode, up_axis=self.up_axis, rig=self.rig)


class Teacher:
    """``(B, P, 3+) -> (B, D), (B, V, h, w, D)``: a frozen image encoder that looks at views of clouds.

    The first is the class token behind the final norm, as a mean over the views; for an encoder without one,
    what its pool gives. The second are the patch tokens of every view. Colours are normalised as
    ``model.meta`` says.

    Raises:
        ValueError: unless the model encodes images, of a size that the views have.
    """

    def __init__(self, model: ViT, views: Views) -> None:
        tokenizer = model.config.tokenizer
        if not isinstance(tokenizer, ImageTokenizerConfig) or tokenizer.in_chans != 3:
            what = f"{model.config.modality} of {tokenizer.in_chans} channels"
            raise ValueError(f"a teacher encodes images of 3 channels, which views are; this one {what}")
        check_view_size("model.view_size", views.size, tokenizer)
        self.model, self.views = model.eval().requires_grad_(False), views
        self.grid = tuple(views.size // side for side in tokenizer.patch_size)

    @property
    def width(self) -> int:
        """Channels of the first output."""
        return self.model.embed_dim if self.model.config.class_token else self.model.pool.features

    @torch.no_grad()
    def __call__(self, clouds: Tensor) -> tuple[Tensor, Tensor]:
        images, meta = self.views.render(clouds), self.model.meta
        mean, std = (images.new_tensor(of)[:, None, None] for of in (meta.image_mean, meta.image_std))
        images = rearrange((images - mean) / std, "b v c h w -> (b v) c h w")
        device = images.device.type
        with torch.autocast(device, torch.bfloat16, enabled=fast_bf16(device)):
            tokens = self.model.forward_features(images)
            objects = tokens[:, 0] if self.model.config.class_token else self.model.pool(tokens)
        patches = tokens[:, self.model.num_prefix_tokens :].float()
        h, w = self.grid
        return (
            rearrange(objects.float(), "(b v) d -> b v d", b=len(clouds)).mean(dim=1),
            rearrange(patches, "(b v) (h w) d -> b v h w d", b=len(clouds), h=h, w=w),
        )
