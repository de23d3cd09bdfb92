"""Looking at a cloud, its groups and what a model attends to: a web page, a picture, or a window."""

from pointvit.viewer.image import write_image
from pointvit.viewer.looks import COLORINGS, Look
from pointvit.viewer.page import write_page
from pointvit.viewer.scene import Attention, Groups, Scene, make_scene

__all__ = [
    "COLORINGS",
    "Attention",
    "Groups",
    "Look",
    "Scene",
    "make_scene",
    "write_image",
    "write_page",
]
