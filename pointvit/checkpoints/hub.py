"""Names of models on the Hugging Face Hub, and where their files are on disk.

Everything that needs a network is in :mod:`pointvit.checkpoints.hub_client`, which is imported once a name is
looked up there.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath

from pointvit.checkpoints.archives import READERS
from pointvit.checkpoints.folders import INDEX

_NAMED = re.compile(
    r"(?P<name>\w[\w.-]*/\w[\w.-]*)"
    r"(?:@(?P<revision>refs/[^/@:\\]+/[^/@:\\]+|[^/@:\\]+))?"
    r"(?:/(?P<file>[^@:\\]+))?"
)
_CACHED = re.compile(r"models--(?P<name>.+--.+)/snapshots/(?P<commit>[0-9a-f]{40})/(?P<file>.+)")


@dataclass(frozen=True)
class Repository:
    """``owner/name``, ``owner/name@revision`` or ``owner/name/path/of/a/file.npz``."""

    name: str
    revision: str | None = None
    """A branch, a tag or a commit; None for the main branch."""
    file: str | None = None
    """One file of the repository, or None for whatever weights it has."""

    @classmethod
    def named(cls, path: str | os.PathLike[str]) -> Repository | None:
        """The repository that ``path`` may name, or None if it can only be a path.

        A path begins with ``.``, ``/`` or ``~``, has a backslash or a drive letter, more than one folder and
        no ending of a weight file, or such an ending behind one folder (``weights/vit.npz``). Where there is
        a folder ``owner/name`` on disk, files are looked for in it alone.
        """
        match = _NAMED.fullmatch(path.as_posix() if isinstance(path, PurePath) else os.fspath(path))
        if match is None or _is_weight_file(match["name"]):
            return None
        name, revision, file = match["name"], match["revision"], match["file"]
        if file is not None and not _is_weight_file(file):
            if revision is None:
                return None
            revision, file = f"{revision}/{file}", None  # the name of a branch may have a slash
        if file is not None and (Path(name).exists() or {"", ".", ".."} & set(file.split("/"))):
            return None
        return cls(name, revision, file)

    def __str__(self) -> str:
        revision = "" if self.revision is None else f"@{self.revision}"
        return f"{self.name}{revision}" if self.file is None else f"{self.name}{revision}/{self.file}"


def find(path: str | os.PathLike[str], folder: bool = False) -> Path | None:
    """The weights that the Hub has under a name that is nothing on disk; None for what can only be a path.

    Args:
        path: a name as in :class:`Repository`.
        folder: the folder with a repository's weights and settings, instead of the file of weights in it.

    Raises:
        FileNotFoundError: if there is no such repository, revision or file, or it cannot be looked for.
        CheckpointError: if the repository may not be read.
    """
    repository = Repository.named(path)
    if repository is None:
        return None
    from pointvit.checkpoints.hub_client import download

    weights = download(repository)
    return weights.parent if folder and repository.file is None else weights


def origin(path: Path) -> str:
    """The name of a file, with its repository and commit if it is in the cache of the Hub's client."""
    match = _CACHED.search(path.as_posix())
    if match is None:
        return path.name
    return str(Repository(match["name"].replace("--", "/"), match["commit"], match["file"]))


def _is_weight_file(name: str) -> bool:
    return name.endswith(INDEX) or PurePath(name).suffix.lower() in READERS
