"""Files, data sets and transforms of point clouds."""

from pointvit.data.dataset import DataError, PointCloudDataset
from pointvit.data.episodes import Episode, FewShot, few_shot_accuracy, make_episodes
from pointvit.data.folder import PointCloudFolder
from pointvit.data.io import PointCloud, read_points
from pointvit.data.meshes import Mesh, mesh_files, read_mesh
from pointvit.data.modelnet import ModelNet10, ModelNet40
from pointvit.data.module import PointCloudDataModule
from pointvit.data.scanobjectnn import ScanObjectNN
from pointvit.data.shapes import Shapes

__all__ = [
    "DataError",
    "Episode",
    "FewShot",
    "Mesh",
    "ModelNet10",
    "ModelNet40",
    "PointCloud",
    "PointCloudDataModule",
    "PointCloudDataset",
    "PointCloudFolder",
    "ScanObjectNN",
    "Shapes",
    "few_shot_accuracy",
    "make_episodes",
    "mesh_files",
    "read_mesh",
    "read_points",
]
