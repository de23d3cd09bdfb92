"""A server on this machine that speaks the protocol of the Hugging Face Hub, so that its real client runs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_test"
BINARY = (".safetensors", ".bin", ".npz", ".pth")


@dataclass
class Repository:
    """Files by their revision; every revision is also reached by its commit."""

    files: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    def at(self, revision: str) -> dict[str, bytes] | None:
        revisions = {"main": self.files, **self.tags}
        return {**revisions, **{commit_of(files): files for files in revisions.values()}}.get(revision)


def commit_of(files: dict[str, bytes]) -> str:
    content = [(name, hashlib.sha256(data).hexdigest()) for name, data in sorted(files.items())]
    return hashlib.sha1(repr(content).encode()).hexdigest()


class Hub:
    """The repositories that the server has, and what it was asked."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, path and token."""
        self.bodies: dict[str, Any] = {}
        """What was last posted, by path."""
        self.uploads: dict[str, bytes] = {}
        self.answer: tuple[int, bytes] | None = None
        """Sent to every request, whatever it asks for."""
        self.endpoint = ""

    def downloaded(self) -> set[str]:
        """Names of the files whose content was sent, since :attr:`requests` was last cleared."""
        paths = [path for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]
        return {path.split("/resolve/")[1].split("/", 1)[1] for path in paths}


class Refusal(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.handle_any()

    do_GET = do_POST = do_PUT = do_HEAD

    def handle_any(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.requests.append((self.command, path, token))
        try:
            if self.hub.answer is not None:
                return self.reply(self.hub.answer[1], self.hub.answer[0])
            self.route(path, token, body)
        except Refusal as refusal:
            self.reply(b"{}", refusal.status, {"X-Error-Code": refusal.code})

    def route(self, path: str, token: str | None, body: bytes) -> None:
        repo = "([^/]+/[^/]+)"
        for pattern, action in {
            rf"/api/models/{repo}(?:/revision/(.+))?": self.info,
            rf"/api/models/{repo}/tree/([^/]+)": self.tree,
            rf"/{repo}/resolve/([^/]+)/(.+)": self.resolve,
        }.items():
            if self.command in ("GET", "HEAD") and (match := re.fullmatch(pattern, path)):
                return action(token, *match.groups())
        if token != TOKEN and not path.startswith("/lfs/"):  # what may be put there was agreed on before
            raise Refusal(401, "")
        for pattern, write in {
            "/api/repos/create": self.create,
            "/api/validate-yaml": lambda body: self.json({}),
            rf"/api/models/{repo}/preupload/main": self.preupload,
            rf"/{repo}\.git/info/lfs/objects/batch": self.batch,
            "/lfs/(.+)": self.upload,
            rf"/api/models/{repo}/commit/main": self.commit,
        }.items():
            if self.command in ("POST", "PUT") and (match := re.fullmatch(pattern, path)):
                if self.command == "POST":
                    self.hub.bodies[path] = body
                return write(body, *match.groups())
        raise Refusal(404, "")

    def files(self, token: str | None, name: str, revision: str | None) -> dict[str, bytes]:
        repository = self.hub.repositories.get(name)
        if token not in (None, TOKEN):
            raise Refusal(401, "")
        if repository is None or (repository.private and token is None):
            raise Refusal(404 if token else 401, "RepoNotFound")
        files = repository.at(revision or "main")
        if files is None:
            raise Refusal(404, "RevisionNotFound")
        return files

    def info(self, token: str | None, name: str, revision: str | None) -> None:
        files = self.files(token, name, revision)
        siblings = [{"rfilename": file} for file in files]
        self.json({"id": name, "sha": commit_of(files), "siblings": siblings})

    def tree(self, token: str | None, name: str, revision: str) -> None:
        files = self.files(token, name, revision)
        self.json(
            [
                {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for file, data in files.items()
            ]
        )

    def resolve(self, token: str | None, name: str, revision: str, file: str) -> None:
        files = self.files(token, name, revision)
        if self.hub.repositories[name].gated and token is None:
            raise Refusal(401, "GatedRepo")
        if file not in files:
            raise Refusal(404, "EntryNotFound")
        headers = {
            "ETag": f'"{hashlib.sha256(files[file]).hexdigest()}"',
            "X-Repo-Commit": commit_of(files),
            "X-Linked-Size": str(len(files[file])),
        }
        self.reply(files[file], 200, headers)

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        status = 409 if name in self.hub.repositories else 200
        self.hub.repositories.setdefault(name, Repository())
        self.json({"url": f"{self.hub.endpoint}/{name}"}, status)

    def preupload(self, body: bytes, name: str) -> None:
        self.json(
            {
                "files": [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["path"].endswith(BINARY) else "regular",
                        "shouldIgnore": False,
                    }
                    for file in json.loads(body)["files"]
                ]
            }
        )

    def batch(self, body: bytes, name: str) -> None:
        objects = [
            {**wanted, "actions": {"upload": {"href": f"{self.hub.endpoint}/lfs/{wanted['oid']}"}}}
            for wanted in json.loads(body)["objects"]
        ]
        self.json({"transfer": "basic", "objects": objects})

    def upload(self, body: bytes, oid: str) -> None:
        self.hub.uploads[oid] = body
        self.reply(b"")

    def commit(self, body: bytes, name: str) -> None:
        repository = self.hub.repositories[name]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repository.files[value["path"]] = self.hub.uploads[value["oid"]]
        commit = commit_of(repository.files)
        self.json({"commitUrl": f"{self.hub.endpoint}/{name}/commit/{commit}", "commitOid": commit})

    def json(self, content: Any, status: int = 200) -> None:
        self.reply(json.dumps(content).encode(), status, {"Content-Type": "application/json"})

    def reply(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serving() -> Iterator[tuple[Hub, ThreadingHTTPServer]]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub, server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
