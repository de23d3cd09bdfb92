"""The Hugging Face Hub: its real client against a server on this machine."""

import io
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PureWindowsPath
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import timm
import torch
from huggingface_hub import ModelCard, constants
from huggingface_hub.utils import close_session
from safetensors.torch import load_file, save, save_file
from torch import Tensor

import pointvit
from hub_server import TOKEN, Hub, Repository, serving
from pointvit import Pair, ViT, create_model, create_pair
from pointvit.checkpoints import CheckpointError, card, hub, hub_client
from pointvit.config import ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig, PointTokenizerConfig
from pointvit.trunk import TrunkConfig

TRUNK = TrunkConfig(48, 2, 3)
IMAGE = ViTConfig(TRUNK, ImageTokenizerConfig((32, 32), (8, 8)), num_classes=5)
POINTS = ViTConfig(TRUNK, PointTokenizerConfig(8, 4), num_classes=4, global_pool="cls+max", head="point_mae")
NAME = "timm/vit_tiny_patch8_32.augreg"
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # how the client uploads


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The client with an empty cache and no token."""
    for name, value in {
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_TOKEN_PATH": str(tmp_path / "token"),
        "HF_STORED_TOKENS_PATH": str(tmp_path / "tokens"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DISABLE_TELEMETRY": True,
    }.items():
        monkeypatch.setattr(constants, name, value)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
    yield
    close_session()


@pytest.fixture
def point_at(client: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """As HF_ENDPOINT, which the client reads when it is imported."""

    def point(endpoint: str) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)

    return point


@pytest.fixture
def server(point_at: Callable) -> Iterator[Hub]:
    with serving() as (served, _):
        point_at(served.endpoint)
        yield served
        close_session()


@pytest.fixture
def unreachable(server: Hub, point_at: Callable) -> Callable[[], None]:
    """From its call on, nothing answers."""

    def vanish() -> None:
        close_session()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            point_at(f"http://127.0.0.1:{free.getsockname()[1]}")

    return vanish


@pytest.fixture
def theirs(randomise: Callable) -> torch.nn.Module:
    settings = {"patch_size": 8, "img_size": 32, "depth": 2, "num_classes": 5}
    return randomise(timm.create_model("vit_tiny_patch16_224", **settings)).eval()


@pytest.fixture
def timm_files(theirs: torch.nn.Module) -> dict[str, bytes]:
    return {
        "config.json": json.dumps({"architecture": "vit_tiny_patch16_224", "num_classes": 5}).encode(),
        "model.safetensors": save(theirs.state_dict()),
        "pytorch_model.bin": b"not to be fetched",
        "README.md": b"neither is this",
    }


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def saved(model: ViT | Pair, folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in pointvit.save(model, folder).iterdir()}


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    ours, others = one.state_dict(), other.state_dict()
    return ours.keys() == others.keys() and all(torch.equal(ours[name], others[name]) for name in ours)


@torch.no_grad()
def test_a_timm_repository(
    server: Hub, theirs: torch.nn.Module, timm_files: dict[str, bytes], error_of: Callable, tmp_path: Path
) -> None:
    server.repositories[NAME] = Repository(timm_files)
    model = create_model("auto", pretrained=NAME).eval()
    assert error_of(model(images()), theirs(images())) <= 1e-5
    assert server.downloaded() == {"config.json", "model.safetensors"}
    commit = server.repositories[NAME].at("main")
    assert re.fullmatch(rf"{NAME}@[0-9a-f]{{40}}/model\.safetensors", model.meta.source["file"])
    assert commit is timm_files
    points = create_model("auto", pretrained=NAME, tokenizer="points")
    assert torch.equal(points.trunk.blocks[1].mlp.fc1.weight, model.trunk.blocks[1].mlp.fc1.weight)
    written = pointvit.save(points, tmp_path / "points")
    assert ModelCard((written / "README.md").read_text()).data.base_model == [NAME]


def test_what_is_cached_is_not_fetched_again_and_needs_no_network(
    server: Hub, timm_files: dict[str, bytes], unreachable: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repositories[NAME] = Repository(timm_files)
    first = create_model("auto", pretrained=NAME)
    server.requests.clear()
    assert same(create_model("auto", pretrained=NAME), first)
    assert server.requests
    assert server.downloaded() == set()
    server.repositories[NAME].private = True
    assert same(create_model("auto", pretrained=NAME), first)
    unreachable()
    assert same(create_model("auto", pretrained=NAME), first)
    assert same(create_model("auto", pretrained=f"{NAME}/model.safetensors"), first)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert same(create_model("auto", pretrained=NAME), first)


def test_what_a_revision_is_now_counts_and_not_what_is_cached(
    server: Hub, theirs: torch.nn.Module, timm_files: dict[str, bytes], refused: Callable
) -> None:
    server.repositories[NAME] = Repository(timm_files, tags={"v1": dict(timm_files)})
    create_model("auto", pretrained=NAME)
    with torch.no_grad():
        theirs.norm.bias.add_(1)
    timm_files["model.safetensors"] = save(theirs.state_dict())
    new, old = (create_model("auto", pretrained=name) for name in (NAME, f"{NAME}@v1"))
    assert torch.equal(new.trunk.norm.bias, old.trunk.norm.bias + 1)
    server.repositories[NAME].tags.clear()
    with refused(None, f"{NAME} has no revision 'v1'"):
        create_model("auto", pretrained=f"{NAME}@v1")


def test_shards_with_their_settings(server: Hub, randomise: Callable, tmp_path: Path) -> None:
    model = randomise(ViT(IMAGE.override({"norm_eps": 1e-3}))).eval()
    folder = pointvit.save_checkpoint(model, tmp_path / "hf", "huggingface")
    tensors = load_file(folder / "model.safetensors")
    files = {"config.json": (folder / "config.json").read_bytes(), "preprocessor_config.json": b"{}"}
    places = {name: f"model-{1 + i % 3:05}-of-00003.safetensors" for i, name in enumerate(sorted(tensors))}
    for shard in set(places.values()):
        files[shard] = save({name: tensors[name] for name in places if places[name] == shard})
    files["model.safetensors.index.json"] = json.dumps({"weight_map": places}).encode()
    server.repositories["google/vit"] = Repository({**files, "flax_model.msgpack": b"", "tf_model.h5": b""})
    again = create_model("auto", pretrained="google/vit")
    assert server.downloaded() == set(files)
    assert again.config.trunk.norm_eps == 1e-3
    assert same(again, model)


def test_an_index_of_what_is_not_there(server: Hub, refused: Callable) -> None:
    index = {"weight_map": {"a": "../../elsewhere.safetensors"}}
    files = {"model.safetensors.index.json": json.dumps(index).encode()}
    server.repositories["a/b"] = Repository(files)
    with refused(None, r"a/b: .* names \.\./\.\./elsewhere\.safetensors, which is not in the repository"):
        create_model("auto", pretrained="a/b")
    files["model.safetensors.index.json"] = b"[]"
    with refused(None, "expected a JSON object"):
        create_model("auto", pretrained="a/b")


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (("pytorch_model.bin", "open_clip_model.safetensors"), "open_clip_model.safetensors"),
        (("open_clip_pytorch_model.bin", "pytorch_model.bin"), "pytorch_model.bin"),
        (("model.safetensors", "open_clip_model.safetensors"), "model.safetensors"),
        (("pytorch_model.bin", "model.safetensors.index.json"), "model.safetensors.index.json"),
        (("README.md", "augreg/ViT-B_16.npz"), "augreg/ViT-B_16.npz"),
        (("weights.pth", "config.json"), "weights.pth"),
        (("a.npz", "b.npz"), None),
        (("README.md",), None),
    ],
)
def test_which_file_is_taken(files: tuple[str, ...], chosen: str | None) -> None:
    assert hub_client._choose(hub.Repository("a/b"), files) == chosen
    assert chosen is None or hub_client._choose(hub.Repository("a/b"), files[::-1]) == chosen


def test_settings_come_along_from_the_folder_of_the_weights() -> None:
    beside = ["x/open_clip_config.json", "x/preprocessor_config.json"]
    assert hub_client._settings_of("x/open_clip_model.safetensors") == beside
    assert hub_client._settings_of("model.safetensors.index.json")[0] == "config.json"
    assert hub_client._settings_of("x/ViT-B_16.npz") == []


def test_one_file_of_several(server: Hub, theirs: torch.nn.Module, refused: Callable) -> None:
    stream = io.BytesIO()
    torch.save({"model": theirs.state_dict()}, stream)
    files = {f"{folder}/deit [1].pth": stream.getvalue() for folder in ("first", "second")}
    server.repositories["facebook/deit"] = Repository(
        files, tags={"some/branch": {"x.pth": stream.getvalue()}}
    )
    with refused(None, r"facebook/deit: expected model\.safetensors.* found first/deit \[1\]\.pth, second/"):
        create_model("auto", pretrained="facebook/deit")
    with refused(None, r"third/deit\.pth: facebook/deit has no such file; did you mean"):
        create_model("auto", pretrained="facebook/deit/third/deit.pth")
    assert server.downloaded() == set()
    model = create_model("auto", pretrained="facebook/deit/second/deit [1].pth")
    assert server.downloaded() == {"second/deit [1].pth"}
    assert same(create_model("auto", pretrained="facebook/deit@some/branch"), model)


@pytest.mark.parametrize(
    ("text", "name", "revision", "file"),
    [
        (NAME, NAME, None, None),
        (f"{NAME}@v1.0", NAME, "v1.0", None),
        ("a/b@refs/pr/1", "a/b", "refs/pr/1", None),
        ("a/b@feature/x", "a/b", "feature/x", None),
        ("a/b/ViT-B_16.npz", "a/b", None, "ViT-B_16.npz"),
        ("a/b@v1/deep/er/x.safetensors", "a/b", "v1", "deep/er/x.safetensors"),
        ("a/b@refs/pr/1/x.pth", "a/b", "refs/pr/1", "x.pth"),
        ("a/b/model.safetensors.index.json", "a/b", None, "model.safetensors.index.json"),
    ],
)
def test_names_of_repositories(text: str, name: str, revision: str | None, file: str | None) -> None:
    repository = hub.Repository(name, revision, file)
    for path in (text, Path(text), PureWindowsPath(text)):
        assert hub.Repository.named(path) == repository
    assert str(repository) == text


@pytest.mark.parametrize(
    "path",
    [
        "", "x", "x.npz", "weights/vit.npz", "weights/vit.SAFETENSORS", "/a/b", "./a/b", "../a/b", "~/b",
        "a/b/", "a//b", "a/b/c", "a/b/c/d", "a\\b", "c:\\a\\b", "C:/a/b", "a/b/../x.npz", "a/b//x.npz",
        "a/.b", "-a/b", "https://huggingface.co/a/b", "a/b@", "a/b@v@w", "a b/c", "runs/demo/best",
    ],
)  # fmt: skip
def test_what_can_only_be_a_path_never_meets_the_network(server: Hub, path: str, refused: Callable) -> None:
    assert hub.find(path) is None
    if path not in ("", "~/b", "/a/b"):
        with refused(None, "no such file or folder; pass the path of a checkpoint"):
            create_model("auto", pretrained=path)
    assert server.requests == []


@torch.no_grad()
def test_what_is_on_disk_wins(
    server: Hub,
    timm_files: dict[str, bytes],
    theirs: torch.nn.Module,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable,
) -> None:
    server.repositories[NAME] = Repository(timm_files)
    monkeypatch.chdir(tmp_path)
    Path(NAME).mkdir(parents=True)
    with refused(None, r"in this folder.* found nothing"):
        create_model("auto", pretrained=NAME)
    theirs.norm.bias.zero_()
    save_file(theirs.state_dict(), Path(NAME, "model.safetensors"))
    assert not create_model("auto", pretrained=NAME).trunk.norm.bias.any()
    with refused(None, "no such file or folder; pass the path of a checkpoint"):
        create_model("auto", pretrained=f"{NAME}/mistyped.npz")
    Path("a").mkdir()
    Path("a/link").symlink_to("nothing")
    with refused(None, "a symbolic link to what is not there"):
        create_model("auto", pretrained="a/link")
    assert server.requests == []


def test_what_is_not_there(
    server: Hub, timm_files: dict[str, bytes], refused: Callable, tmp_path: Path
) -> None:
    server.repositories[NAME] = Repository(timm_files)
    missing = (
        rf"a/b: no such file or folder, and no repository of that name at {server.endpoint}; pass the path"
    )
    for use in (pointvit.load, ViT.from_pretrained, lambda name: create_model("auto", pretrained=name)):
        with refused(None, missing):
            use("a/b")
    with refused(None, f"{NAME} has no revision 'v9'; name a branch, tag or commit"):
        create_model("auto", pretrained=f"{NAME}@v9")
    create_model("auto", pretrained=NAME)
    with refused(None, f"{NAME} has no revision 'v9'"):
        create_model("auto", pretrained=f"{NAME}@v9")
    with refused(None, "expected a model saved by pointvit"):
        pointvit.load(NAME)


def test_access(
    server: Hub, timm_files: dict[str, bytes], refused: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repositories = {
        "a/gated": Repository(timm_files, gated=True), "a/private": Repository(timm_files, private=True)
    }  # fmt: skip
    with refused(
        None, f"ask for it at {server.endpoint}/a/gated and set HF_TOKEN, or pass the path of a file"
    ):
        create_model("auto", pretrained="a/gated")
    with refused(None, "a/private: .*set HF_TOKEN if the repository is private"):
        create_model("auto", pretrained="a/private")
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    with refused(None, r"a/gated: .*set HF_TOKEN"):
        create_model("auto", pretrained="a/gated")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    server.requests.clear()
    gated, private = (create_model("auto", pretrained=name) for name in ("a/gated", "a/private"))
    assert same(gated, private)
    assert {token for _, _, token in server.requests} == {TOKEN}


def test_without_a_network_it_ends_quickly(
    unreachable: Callable, refused: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreachable()
    start = time.monotonic()
    for name in ("a/b", "a/b/x.npz", "a/b@v1"):
        with refused(None, f"{name}: no such file or folder, and downloading it from .* failed .*refused"):
            create_model("auto", pretrained=name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with refused(None, "in the cache, which alone HF_HUB_OFFLINE allows; unset it, or pass the path"):
        create_model("auto", pretrained="a/b")
    assert time.monotonic() - start < 5


def test_a_server_that_does_not_answer(
    point_at: Callable, refused: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_client, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        point_at(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with refused(None, "failed .*Timeout"):
            create_model("auto", pretrained="a/b")
        close_session()


@pytest.mark.parametrize("answer", [(200, b"<html>Sign in</html>"), (200, b"{}"), (500, b""), (403, b"no")])
def test_a_server_that_is_no_hub(server: Hub, answer: tuple[int, bytes], refused: Callable) -> None:
    server.answer = answer
    with refused(None, "a/b: .*pass the path of a"):
        create_model("auto", pretrained="a/b")


def test_an_interrupted_download_is_not_taken_for_a_model(
    server: Hub, timm_files: dict[str, bytes], unreachable: Callable, refused: Callable
) -> None:
    server.repositories[NAME] = Repository({"config.json": b"{}", "model.safetensors": b""})
    huggingface_hub.hf_hub_download(NAME, "config.json")
    unreachable()
    with refused(None, f"{NAME}: no such file or folder, and downloading it"):
        create_model("auto", pretrained=NAME)


@pytest.mark.parametrize("kind", ["image", "points", "pair"])
def test_pushed_and_loaded_again(
    kind: str, server: Hub, randomise: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {
        "image": lambda: ViT(IMAGE),
        "points": lambda: ViT(POINTS),
        "pair": lambda: Pair(ViT(IMAGE), ViT(POINTS)),
    }
    model = randomise(models[kind]()).eval()
    if isinstance(model, ViT):
        model.meta.class_names = [f"class {i}" for i in range(model.num_classes)]
    url = model.push_to_hub("me/mine", private=True, token=TOKEN, commit_message="First")
    assert url.startswith(f"{server.endpoint}/me/mine/commit/")
    assert {token for _, path, token in server.requests if not path.startswith("/lfs/")} == {TOKEN}
    assert json.loads(server.bodies["/api/repos/create"])["visibility"] == "private"
    commit = [json.loads(line) for line in server.bodies["/api/models/me/mine/commit/main"].splitlines()]
    assert commit[0]["value"]["summary"] == "First"
    assert set(server.repositories["me/mine"].files) == {"README.md", "config.json", "model.safetensors"}
    assert b'pointvit.load("me/mine")' in server.repositories["me/mine"].files["README.md"]
    again = type(model).from_pretrained("me/mine")
    assert same(again, model)
    assert not again.training
    assert server.downloaded() == {"config.json", "model.safetensors"}
    if isinstance(model, ViT):
        assert again.meta == model.meta
        assert same(create_model("auto", pretrained="me/mine"), model)
        with pytest.raises(
            ValueError, match=r"me/mine: expected a Pair, found a ViT; use ViT\.from_pretrained"
        ):
            Pair.from_pretrained("me/mine")


def test_pushing_again_replaces_the_card_unless_it_was_edited(server: Hub, randomise: Callable) -> None:
    model = randomise(ViT(POINTS))
    model.push_to_hub("me/mine", token=TOKEN)
    files = server.repositories["me/mine"].files
    model.meta.class_names = ["pear", "fig", "plum", "lime"]
    model.push_to_hub("me/mine", token=TOKEN)
    assert b"pear, fig, plum, lime" in files["README.md"]
    files["README.md"] += b"\n91 % on ModelNet40\n"
    model.reset_classifier(2)
    model.push_to_hub("me/mine", token=TOKEN)
    assert files["README.md"].endswith(b"\n91 % on ModelNet40\n")
    assert pointvit.load("me/mine").num_classes == 2


def test_uploads_that_fail(server: Hub, unreachable: Callable) -> None:
    model = ViT(IMAGE)
    for name in ("mine", "me/mine@v1", "me/mine/x.npz", "/me/mine", "me/mine.npz"):
        with pytest.raises(ValueError, match="expected a repository as owner/name, got"):
            model.push_to_hub(name)
    assert server.requests == []
    for token in (None, "hf_expired"):
        with pytest.raises(
            PermissionError, match=r"me/mine: .* refused the upload \(HTTP 401\); set HF_TOKEN"
        ):
            model.push_to_hub("me/mine", token=token)
    server.answer = (400, b"{}")
    with pytest.raises(ConnectionError, match=r"me/mine: the upload to .* failed"):
        model.push_to_hub("me/mine", token=TOKEN)
    unreachable()
    with pytest.raises(ConnectionError, match=r"me/mine: the upload to .* failed .*; try again") as caught:
        model.push_to_hub("me/mine", token=TOKEN)
    assert "\n" not in str(caught.value)
    assert server.repositories == {}


def code_of(text: str) -> str:
    (code,) = re.findall(r"```python\n(.+?)```", text, re.DOTALL)
    return code


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("kind", ["image", "points", "pair"])
@torch.no_grad()
def test_the_card(kind: str, classes: int, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    image, points = (ViT(config.override({"num_classes": classes})) for config in (IMAGE, POINTS))
    points.meta.source = {"file": "vit.npz", "sha256": "0f" * 32, "format": "google"}
    points.meta.num_points, points.meta.up_axis = 50, "y"
    image.meta.image_mean = (0.1, 0.2, 0.3)
    points.meta.class_names = ["a|b", "two\nlines", "c"][:classes]
    model = {"image": image, "points": points, "pair": Pair(image, points)}[kind]
    folder = model.save_pretrained(tmp_path / "m")
    content = (folder / "README.md").read_text()
    data = ModelCard(content).data
    tasks = {("image", 0): "image-feature-extraction", ("image", 3): "image-classification"}
    assert (data.library_name, data.license, data.pipeline_tag) == (
        "pointvit",
        None,
        tasks.get((kind, classes)),
    )
    tags = {"image": ["image"], "points": ["point-cloud"], "pair": ["image", "point-cloud"]}
    assert data.tags == ["vision-transformer", *tags[kind]]
    said = {
        "image": ["`(B, 3, 32, 32)`", "mean 0.1, 0.2, 0.3", "patch_size [8, 8]", "width 48, 2 blocks"],
        "points": ["num_groups 8, group_size 4", "| Up axis | y |", "| Points per cloud | 50 |",
                   "| unit_sphere |", f"`vit.npz` (google, SHA-256 `{'0f' * 32}`)"],
    }  # fmt: skip
    said["pair"] = [*said["image"], *said["points"]]
    for sentence in said[kind] + ([r"| a\|b, two lines, c |"] if kind != "image" and classes else []):
        assert sentence in content
    np.save(tmp_path / "object.npy", torch.randn(50, 3).numpy())
    code = (
        code_of(content).replace(card.FOLDER, str(folder)).replace("object.ply", str(tmp_path / "object.npy"))
    )
    names: dict[str, Any] = {"images": images(), "clouds": torch.randn(2, 60, 3)}
    exec(code, names)
    result = names.get("logits", names.get("features"))
    expected = model(images()) if kind == "image" else None
    if kind == "points" and classes:
        assert "a|b" in capsys.readouterr().out
    else:
        assert isinstance(result, Tensor)
        assert expected is None or result.shape == expected.shape


def test_a_card_that_was_edited_is_kept(tmp_path: Path) -> None:
    folder = pointvit.save(ViT(IMAGE), tmp_path / "m")
    assert not card.is_edited(folder)
    pointvit.save(ViT(POINTS), folder)
    assert not card.is_edited(folder)
    assert "point clouds" in (folder / "README.md").read_text()
    with (folder / "README.md").open("a") as stream:
        stream.write("\nTrained on my own scans.\n")
    assert card.is_edited(folder)
    pointvit.save(ViT(IMAGE), folder)
    assert (folder / "README.md").read_text().endswith("\nTrained on my own scans.\n")
    assert not card.is_edited(tmp_path)
    (tmp_path / "README.md").write_text("mine")
    assert card.is_edited(tmp_path)


def test_many_classes_are_not_all_named(tmp_path: Path) -> None:
    model = ViT(IMAGE.override({"num_classes": 130}))
    model.meta.class_names = [f"c{i}" for i in range(130)]
    assert ", c99, and 30 more |" in (pointvit.save(model, tmp_path / "m") / "README.md").read_text()


def test_a_pair_from_a_repository(server: Hub, timm_files: dict[str, bytes]) -> None:
    server.repositories[NAME] = Repository(timm_files)
    pair = create_pair("auto", NAME, num_classes=3)
    assert same(pair.trunk, create_model("auto", pretrained=NAME).trunk)


@pytest.mark.slow
def test_the_client_is_imported_only_when_it_is_needed() -> None:
    code = "import sys, pointvit; sys.exit('huggingface_hub.hf_api' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_origin() -> None:
    commit = "0" * 40
    cached = Path(
        f"/home/x/.cache/huggingface/hub/models--timm--vit_x.y/snapshots/{commit}/deep/m.safetensors"
    )
    assert hub.origin(cached) == f"timm/vit_x.y@{commit}/deep/m.safetensors"
    assert hub.origin(Path("/home/x/m.safetensors")) == "m.safetensors"
    assert isinstance(CheckpointError("x"), ValueError)
