"""Models to and from the Hugging Face Hub, through its own client.

Its cache, progress bars and environment variables (``HF_TOKEN``, ``HF_HUB_OFFLINE``, ``HF_ENDPOINT``,
``HF_HOME``) are in force.
"""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from pointvit.checkpoints import card
from pointvit.checkpoints.archives import READERS
from pointvit.checkpoints.folders import CONFIGS, INDEX, PREPROCESSOR, read_json
from pointvit.checkpoints.hub import Repository
from pointvit.checkpoints.kinds import CheckpointError
from pointvit.checkpoints.saving import CARD, CONFIG, save
from pointvit.config import near

if TYPE_CHECKING:
    from pointvit.model import Pair, ViT

WEIGHTS = tuple(
    file for name in sorted(CONFIGS, key=lambda name: not name.endswith(".safetensors"))
    for file in (name, name + INDEX)
)  # fmt: skip
"""What a repository's weights are called, safetensors first; the first that it has is taken."""
TIMEOUT = 10.0
"""Seconds to wait for the list of files; downloads, which would be tried again and again, come after it."""
FAILURES = (HTTPError, OSError, RuntimeError, ValueError, LookupError, TypeError)
"""What the client raises; from ValueError on, for answers that are not the Hub's (a network's login page)."""


def download(repository: Repository) -> Path:
    """The weights of a repository on disk, with its settings beside them; cached files are not fetched again.

    Without a network, or where access is refused by now, what is in the cache is used.

    Raises:
        FileNotFoundError: if there is no such repository, revision or file, or it cannot be looked for.
        CheckpointError: if the repository may not be read, or its index names files that it does not have.
    """
    try:
        names = _listing(repository)
    except FAILURES as error:
        cached = None if isinstance(error, RevisionNotFoundError) else _cached(repository)
        if cached is None:
            raise _failure(repository, error) from error
        return cached
    weights = _choose(repository, names)
    if weights is None:
        raise FileNotFoundError(_no_weights(repository, names))
    folder = _fetch(repository, [weights, *(file for file in _settings_of(weights) if file in names)])
    if weights.endswith(INDEX):
        shards = _shards(folder, weights)
        for shard in shards:
            if shard not in names:
                raise CheckpointError(
                    f"{repository}: {weights} names {shard}, which is not in the repository"
                )
        _fetch(repository, shards)
    return folder / weights


def push(
    model: ViT | Pair,
    name: str,
    private: bool | None = None,
    token: str | bool | None = None,
    commit_message: str = "Upload a pointvit model",
) -> str:
    """Uploads what :func:`~pointvit.checkpoints.save` writes; returns the commit's URL.

    The repository is made if it is not there. A model card in it that someone has edited is kept.

    Args:
        name: ``owner/name``.
        private: whether a new repository is private; None for the owner's default.
        token: None for ``HF_TOKEN``, or the one that ``hf auth login`` stored.

    Raises:
        ValueError: if ``name`` is not ``owner/name``.
        PermissionError: if the token may not write there.
        ConnectionError: if the upload fails for another reason.
    """
    if Repository.named(name) != Repository(name):
        raise ValueError(f"expected a repository as owner/name, got {name!r}")
    with tempfile.TemporaryDirectory() as temporary:
        saved, previous = save(model, Path(temporary, "model")), Path(temporary, "previous")
        api = HfApi(token=token, library_name="pointvit")
        try:
            api.create_repo(name, private=private, exist_ok=True)
            for file in (CARD, CONFIG):
                _fetch_if_there(api, name, file, previous)
            card.write(saved, previous, name)
            commit = api.upload_folder(repo_id=name, folder_path=saved, commit_message=commit_message)
        except FAILURES as error:
            status = _status(error)
            if status in (401, 403):
                raise PermissionError(
                    f"{name}: {constants.ENDPOINT} refused the upload (HTTP {status}); set HF_TOKEN, or pass "
                    "token=..., to one that may write there"
                ) from error
            raise ConnectionError(
                f"{name}: the upload to {constants.ENDPOINT} failed ({_reason(error)}); try again"
            ) from error
    return str(commit.commit_url)


def _fetch_if_there(api: HfApi, name: str, file: str, folder: Path) -> None:
    try:
        api.hf_hub_download(name, file, local_dir=folder)
    except LocalEntryNotFoundError:  # also an EntryNotFoundError, but says that there is no network
        raise
    except EntryNotFoundError:
        pass


def _listing(repository: Repository) -> list[str]:
    """The names of all files in the repository."""
    info = HfApi(library_name="pointvit").model_info(
        repository.name, revision=repository.revision, timeout=TIMEOUT
    )
    return [file.rfilename for file in info.siblings or ()]


def _choose(repository: Repository, names: Sequence[str]) -> str | None:
    """Of the files ``names``, the one with the weights, if there is one that can be meant."""
    if repository.file is not None:
        return repository.file if repository.file in names else None
    alone = _weight_files(names)
    return next((name for name in WEIGHTS if name in names), alone[0] if len(alone) == 1 else None)


def _weight_files(names: Iterable[str]) -> list[str]:
    return [name for name in names if Path(name).suffix.lower() in READERS]


def _no_weights(repository: Repository, names: Sequence[str]) -> str:
    there = _weight_files(names)
    if repository.file is not None:
        return f"{repository}: {repository.name} has no such file; {near(repository.file, there)}"
    found = f"found {', '.join(there[:4])}{', ...' * (len(there) > 4)}" if there else "found none"
    return (
        f"{repository}: expected {', '.join(WEIGHTS[:3])}, ... or a single file of weights there, {found}; "
        f"name a file as {repository}/FILE"
    )


def _fetch(repository: Repository, files: Sequence[str]) -> Path:
    """Downloads files into the cache; returns the folder of the repository's snapshot there."""
    try:
        folder = Path(
            snapshot_download(
                repository.name,
                revision=repository.revision,
                allow_patterns=[glob.escape(file) for file in files],
                etag_timeout=TIMEOUT,
                library_name="pointvit",
            )
        )
        for file in files:
            if not (folder / file).is_file():
                raise ConnectionError(f"{file} did not arrive")
    except FAILURES as error:
        raise _failure(repository, error) from error
    return folder


def _cached(repository: Repository) -> Path | None:
    """The weights in the cache, if they are all there."""
    try:
        folder = Path(
            snapshot_download(
                repository.name, revision=repository.revision, allow_patterns=[], local_files_only=True
            )
        )
    except FAILURES:
        return None
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    weights = _choose(repository, names)
    if weights is None or (weights.endswith(INDEX) and not set(_shards(folder, weights)) <= set(names)):
        return None
    return folder / weights


def _settings_of(weights: str) -> list[str]:
    """The files that say more about the weights, beside them."""
    config = CONFIGS.get(_name(weights).removesuffix(INDEX))
    return [] if config is None else [_beside(weights, config), _beside(weights, PREPROCESSOR)]


def _shards(folder: Path, index: str) -> list[str]:
    """The files that an index names, as they are called in the repository."""
    places = read_json(folder / index).get("weight_map")
    if not isinstance(places, dict):
        raise CheckpointError(f"{folder / index}: expected a weight_map of names to shards")
    return sorted({_beside(index, str(shard)) for shard in places.values()})


def _name(file: str) -> str:
    return file.rpartition("/")[2]


def _beside(file: str, name: str) -> str:
    folder = file.rpartition("/")[0]
    return f"{folder}/{name}" if folder else name


def _failure(repository: Repository, error: Exception) -> Exception:
    """One sentence for what went wrong, and how to do without."""
    name, where, status = repository.name, constants.ENDPOINT, _status(error)
    if isinstance(error, RevisionNotFoundError):
        return FileNotFoundError(
            f"{repository}: {name} has no revision {repository.revision!r}; name a branch, tag or commit, "
            "or leave it out"
        )
    if isinstance(error, GatedRepoError):
        return CheckpointError(
            f"{repository}: its owner grants access one by one; ask for it at {where}/{name} and set "
            "HF_TOKEN, or pass the path of a file"
        )
    if isinstance(error, RepositoryNotFoundError):
        return FileNotFoundError(
            f"{repository}: no such file or folder, and no repository of that name at {where}; pass the path "
            "of a checkpoint, or set HF_TOKEN if the repository is private"
        )
    if status in (401, 403):
        return CheckpointError(
            f"{repository}: {where} refused access (HTTP {status}); set HF_TOKEN to one that may read it, or "
            "pass the path of a file"
        )
    if isinstance(error, OfflineModeIsEnabled):
        return FileNotFoundError(
            f"{repository}: no such file or folder, and no repository of that name in the cache, which alone "
            "HF_HUB_OFFLINE allows; unset it, or pass the path of a checkpoint"
        )
    return FileNotFoundError(
        f"{repository}: no such file or folder, and downloading it from {where} failed ({_reason(error)}); "
        "pass the path of a checkpoint, or try again"
    )


def _status(error: Exception) -> int | None:
    """The HTTP status that an error of the client comes from, if it comes from one."""
    return getattr(getattr(error.__cause__ or error, "response", None), "status_code", None)


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error  # the client wraps what happened in advice that spans several sentences
    said = (str(cause).strip().splitlines() or [""])[0][:150]
    return f"{type(cause).__name__}: {said}" if said else type(cause).__name__
