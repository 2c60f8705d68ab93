"""A Hugging Face hub on loopback, as far as the unmodified huggingface_hub client and a download ask for one.

    python -m infra.local.hub --dir DIR --port 20010        models lie in DIR/<org>/<model>/

Large files are redirected to a "CDN" at another host name (127.0.0.2) with signed addresses, as the real hub does:
a client that sends its token there is caught. A model with a file `.gated` or `.private` needs one of the tokens in
DIR/tokens.json. POST /_faults (a list of infra.local.faults.Fault) breaks the next requests; GET /_requests tells
what was asked.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import json
import secrets
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from infra.local import server
from infra.local.faults import Faults
from infra.local.ranges import send_file
from infra.local.repository import Blob, Commit, Repository
from infra.local.server import HOST, Server, free_ports

CDN_HOST = "127.0.0.2"
MODEL = "{model:[^/_][^/]*/[^/]+}"
GATED = "Access to model {model} is restricted and you are not in the authorized list."

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def start(directory: Path, *, port: int = 0) -> Server:
    """Start a hub on `directory` and wait until it answers; port 0 takes a free one."""
    port = port or free_ports(1)[0]
    return server.start(
        [sys.executable, "-m", "infra.local.hub", "--dir", str(directory), "--port", str(port)],
        url=f"http://{HOST}:{port}",
        health="/healthz",
        log=directory / ".hub" / "hub.log",
    )


class Hub:
    """The routes. One instance serves both the hub and its CDN."""

    def __init__(self, directory: Path, cdn_url: str) -> None:
        self._directory = directory
        self._cdn_url = cdn_url
        self._key = secrets.token_bytes(32)
        self._indexing = asyncio.Lock()
        self.faults = Faults()
        self.requests: list[dict[str, Any]] = []

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._watch])
        app.add_routes(
            [
                web.get("/healthz", _answer_health),
                web.get("/_requests", self._list_requests),
                web.post("/_faults", self._set_faults),
                web.get(f"/api/models/{MODEL}", self._model_info),
                web.get(f"/api/models/{MODEL}/revision/{{revision}}", self._model_info),
                web.get(f"/api/models/{MODEL}/tree/{{revision}}", self._tree),
                web.get(f"/api/models/{MODEL}/auth-check", self._check_access),
                web.get(f"/{MODEL}/resolve/{{revision}}/{{path:.+}}", self._resolve),
                web.get(f"/cdn/{MODEL}/{{commit}}/{{path:.+}}", self._cdn),
            ]
        )
        return app

    @web.middleware
    async def _watch(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/healthz" or request.path.startswith("/_"):
            return await handler(request)
        self.requests.append(
            {
                "method": request.method,
                "host": request.host,
                "path": request.path,
                "range": request.headers.get("Range", ""),
                "has_token": "Authorization" in request.headers,
            }
        )
        fault = self.faults.take(request.path, of_body=False)
        if fault is not None:
            return web.Response(status=fault.status, headers=fault.headers(), text="a fault that was asked for")
        return await handler(request)

    async def _list_requests(self, _request: web.Request) -> web.Response:
        return web.json_response(self.requests)

    async def _set_faults(self, request: web.Request) -> web.Response:
        try:
            self.faults.replace(await request.json())
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        self.requests.clear()
        return web.json_response({"faults": len(self.faults.waiting)})

    async def _model_info(self, request: web.Request) -> web.Response:
        repository, commit = await self._find(request, metadata_only=True)
        return web.json_response(
            {
                "id": repository.name,
                "modelId": repository.name,
                "sha": commit.id,
                "private": repository.is_private(),
                "gated": "manual" if repository.is_gated() else False,
                "disabled": False,
                "tags": [],
                "siblings": [_sibling(blob, with_blobs="blobs" in request.query) for blob in commit.blobs],
            }
        )

    async def _tree(self, request: web.Request) -> web.Response:
        _, commit = await self._find(request, metadata_only=True)
        return web.json_response([_tree_entry(blob) for blob in commit.blobs])

    async def _check_access(self, request: web.Request) -> web.Response:
        await self._find(request)
        return web.Response()

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        repository, commit = await self._find(request)
        path = request.match_info["path"]
        blob = commit.find(path)
        content = repository.content(blob) if blob else None
        if blob is None or content is None:
            raise _refuse(web.HTTPNotFound, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit.id})
        headers = {"X-Repo-Commit": commit.id, "ETag": f'"{blob.sha256 or blob.oid}"'}
        if not blob.sha256:
            return await send_file(request, content, headers)
        where = f"/cdn/{repository.name}/{commit.id}/{path}"
        headers |= {
            "X-Linked-ETag": headers["ETag"],
            "X-Linked-Size": str(blob.size_bytes),
            "Location": f"{self._cdn_url}{where}?signature={self._sign(where)}",
        }
        return web.Response(status=302, headers=headers)

    async def _cdn(self, request: web.Request) -> web.StreamResponse:
        if not hmac.compare_digest(request.query.get("signature", ""), self._sign(request.path)):
            return web.Response(status=403, text="the address is not signed")
        repository = Repository(self._directory, request.match_info["model"])
        commit = repository.commit(request.match_info["commit"])
        blob = commit.find(request.match_info["path"]) if commit else None
        content = repository.content(blob) if blob else None
        if blob is None or content is None:
            return web.Response(status=404)
        fault = self.faults.take(request.path, of_body=True) if request.method == "GET" else None
        return await send_file(request, content, {"ETag": f'"{blob.sha256}"'}, fault)

    async def _find(self, request: web.Request, *, metadata_only: bool = False) -> tuple[Repository, Commit]:
        """The repository and the commit a request is about, once it is allowed to ask."""
        repository = Repository(self._directory, request.match_info["model"])
        self._authorize(request, repository, metadata_only=metadata_only)
        async with self._indexing:
            commit = await asyncio.to_thread(repository.commit, request.match_info.get("revision", "main"))
        if commit is None:
            raise _refuse(web.HTTPNotFound, "RevisionNotFound", "Invalid rev id")
        return repository, commit

    def _authorize(self, request: web.Request, repository: Repository, *, metadata_only: bool) -> None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        known = given in self._tokens()
        if given and not known and not given.startswith("hf_"):
            raise _refuse(web.HTTPUnauthorized, "", "Invalid credentials in Authorization header")
        if not repository.exists() or (repository.is_private() and not known):
            # The real hub does not tell a stranger whether a private model exists.
            raise _refuse(web.HTTPNotFound if given else web.HTTPUnauthorized, "RepoNotFound", "Repository not found")
        if repository.is_gated() and not known and not metadata_only:
            kind = web.HTTPForbidden if given else web.HTTPUnauthorized
            raise _refuse(kind, "GatedRepo", GATED.format(model=repository.name))

    def _tokens(self) -> list[str]:
        path = self._directory / "tokens.json"
        tokens: list[str] = json.loads(path.read_text()) if path.exists() else []
        return tokens

    def _sign(self, path: str) -> str:
        return hmac.new(self._key, path.encode(), hashlib.sha256).hexdigest()


async def _answer_health(_request: web.Request) -> web.Response:
    return web.Response(text="ok")


def _refuse(
    kind: type[web.HTTPException], code: str, message: str, headers: dict[str, str] | None = None
) -> web.HTTPException:
    """As the hub refuses: the reason is in two headers."""
    coded = {"X-Error-Code": code} if code else {}
    return kind(
        headers={**coded, "X-Error-Message": message, **(headers or {})},
        text=json.dumps({"error": message}),
        content_type="application/json",
    )


def _sibling(blob: Blob, *, with_blobs: bool) -> dict[str, Any]:
    if not with_blobs:
        return {"rfilename": blob.path}
    entry: dict[str, Any] = {"rfilename": blob.path, "size": blob.size_bytes, "blobId": blob.oid}
    return entry | (
        {"lfs": {"sha256": blob.sha256, "size": blob.size_bytes, "pointerSize": 134}} if blob.sha256 else {}
    )


def _tree_entry(blob: Blob) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": blob.path, "size": blob.size_bytes, "oid": blob.oid}
    return entry | ({"lfs": {"oid": blob.sha256, "size": blob.size_bytes, "pointerSize": 134}} if blob.sha256 else {})


async def serve(directory: Path, port: int) -> None:
    """Serve until cancelled."""
    cdn_port = free_ports(1)[0]
    hub = Hub(directory, f"http://{CDN_HOST}:{cdn_port}")
    runner = web.AppRunner(hub.application(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, CDN_HOST, cdn_port).start()
        await web.TCPSite(runner, HOST, port).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.local.hub", description="A Hugging Face hub on loopback")
    parser.add_argument("--dir", type=Path, required=True, help="models as <org>/<model>/<files>")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(argv)
    try:
        asyncio.run(serve(options.dir.resolve(), options.port))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
