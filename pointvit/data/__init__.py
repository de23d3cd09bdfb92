"""Files, data sets and transforms of point clouds."""

from pointvit.data.dataset import DataError, PointCloudDataset
from pointvit.data.folder import PointCloudFolder
from pointvit.data.io import PointCloud, read_points
from pointvit.data.modelnet import ModelNet10, ModelNet40
from pointvit.data.module import PointCloudDataModule
from pointvit.data.shapes import Shapes

__all__ = [
    "DataError",
    "ModelNet10",
    "ModelNet40",
    "PointCloud",
    "PointCloudDataModule",
    "PointCloudDataset",
    "PointCloudFolder",
    "Shapes",
    "read_points",
]
