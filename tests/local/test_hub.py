"""The unmodified huggingface_hub client against the local hub."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url, snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from infra.local import hub

pytestmark = pytest.mark.local
MODEL = "acme/tiny"
TOKEN = "hf_let_in"


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    root = model.parent.parent
    (root / "tokens.json").write_text(json.dumps([TOKEN]))
    (root / "acme" / "gated").mkdir()
    (root / "acme" / "gated" / ".gated").touch()
    (root / "acme" / "gated" / "model.safetensors").write_bytes(b"weights")
    with hub.start(root) as server:
        yield server.url


@pytest.fixture
def api(url: str) -> HfApi:
    return HfApi(endpoint=url, token=False)


@pytest.fixture
def ask(url: str) -> Callable[..., Any]:
    def send(path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url}{path}", data)) as response:  # noqa: S310
            return json.load(response)

    return send


def test_the_client_downloads_a_whole_model_as_it_is(url: str, model: Path, tmp_path: Path) -> None:
    got = Path(snapshot_download(MODEL, endpoint=url, token=False, cache_dir=tmp_path / "cache"))
    assert {file.name for file in got.iterdir()} == {file.name for file in model.iterdir()}
    for file in model.iterdir():
        assert (got / file.name).read_bytes() == file.read_bytes()


def test_the_tree_and_the_model_info_agree(api: HfApi) -> None:
    info = api.model_info(MODEL, files_metadata=True)
    tree = {entry.path: entry for entry in api.list_repo_tree(MODEL, revision=info.sha, recursive=True)}
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    assert set(tree) == set(siblings)
    for path, sibling in siblings.items():
        assert (tree[path].size, tree[path].blob_id) == (sibling.size, sibling.blob_id)  # type: ignore[union-attr]
        assert tree[path].lfs == sibling.lfs  # type: ignore[union-attr]


def test_a_large_file_is_redirected_to_another_host_and_its_token_stays_behind(
    url: str, ask: Callable[..., Any], tmp_path: Path
) -> None:
    ask("/_faults", [])
    hf_hub_download(
        "acme/gated", "model.safetensors", endpoint=url, token=TOKEN, cache_dir=tmp_path, force_download=True
    )
    requests = ask("/_requests")
    assert {entry["host"].split(":")[0] for entry in requests if entry["path"].startswith("/cdn/")} == {"127.0.0.2"}
    assert all(entry["has_token"] != entry["path"].startswith("/cdn/") for entry in requests)


def test_metadata_of_a_file_comes_with_commit_digest_and_size(api: HfApi, url: str, model: Path) -> None:
    info = api.model_info(MODEL, files_metadata=True)
    for sibling in info.siblings or ():
        meta = get_hf_file_metadata(hf_hub_url(MODEL, sibling.rfilename, revision="main", endpoint=url), token=False)
        assert meta.commit_hash == info.sha
        assert meta.etag == (sibling.lfs.sha256 if sibling.lfs else sibling.blob_id)
        assert meta.size == (model / sibling.rfilename).stat().st_size


def test_a_range_of_a_file_is_served_and_an_unsigned_address_is_not(url: str, model: Path) -> None:
    shard = "model-00001-of-00004.safetensors"
    location = f"{url}/{MODEL}/resolve/main/{shard}"
    request = urllib.request.Request(location, headers={"Range": "bytes=100-199"})  # noqa: S310
    with urllib.request.urlopen(request) as response:  # noqa: S310
        assert response.status == 206
        assert response.headers["Content-Range"] == f"bytes 100-199/{(model / shard).stat().st_size}"
        assert response.read() == (model / shard).read_bytes()[100:200]
        cdn = response.url
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(cdn.split("?")[0])  # noqa: S310


@pytest.mark.parametrize(("asked", "status"), [("bytes=-5", 206), ("bytes=99999999-", 416), ("lines=1-2", 416)])
def test_odd_ranges_are_answered_as_http_says(url: str, model: Path, asked: str, status: int) -> None:
    location = f"{url}/{MODEL}/resolve/main/config.json"
    request = urllib.request.Request(location, headers={"Range": asked})  # noqa: S310
    if status == 416:
        with pytest.raises(urllib.error.HTTPError, match="416"):
            urllib.request.urlopen(request)  # noqa: S310
    else:
        with urllib.request.urlopen(request) as response:  # noqa: S310
            assert response.read() == (model / "config.json").read_bytes()[-5:]


def test_a_file_that_is_no_longer_the_expected_one_is_refused(url: str) -> None:
    location = f"{url}/{MODEL}/resolve/main/config.json"
    with pytest.raises(urllib.error.HTTPError, match="412"):
        urllib.request.urlopen(urllib.request.Request(location, headers={"If-Match": '"other"'}))  # noqa: S310


def test_the_client_raises_the_errors_that_it_raises_at_the_real_hub(api: HfApi) -> None:
    with pytest.raises(RevisionNotFoundError):
        api.model_info(MODEL, revision="v9")
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("acme/none")
    with pytest.raises(GatedRepoError):
        api.auth_check("acme/gated")
    api.auth_check("acme/gated", token=TOKEN)
    assert api.model_info("acme/gated").gated


def test_a_fault_meets_as_many_requests_as_was_asked_for(api: HfApi, ask: Callable[..., Any]) -> None:
    ask("/_faults", [{"path": "/api/", "status": 429, "times": 1, "rate_limit": '"api";r=0;t=9'}])
    with pytest.raises(HfHubHTTPError, match="Retry after 9 seconds"):
        api.model_info(MODEL)
    api.model_info(MODEL)


def test_a_body_can_be_corrupted_and_cut_short(url: str, model: Path, ask: Callable[..., Any]) -> None:
    shard = "model-00002-of-00004.safetensors"
    whole = (model / shard).read_bytes()
    location = f"{url}/{MODEL}/resolve/main/{shard}"
    ask("/_faults", [{"corrupt": True}, {"truncate_bytes": 1000}])
    with urllib.request.urlopen(location) as response:  # noqa: S310
        body = response.read()
    assert len(body) == len(whole)
    assert sum(a != b for a, b in zip(body, whole, strict=True)) == 1
    with pytest.raises(Exception, match="IncompleteRead"), urllib.request.urlopen(location) as response:  # noqa: S310
        response.read()
    with urllib.request.urlopen(location) as response:  # noqa: S310
        assert response.read() == whole


def test_a_fault_that_does_not_exist_is_refused(ask: Callable[..., Any]) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400"):
        ask("/_faults", [{"explode": True}])
