"""Hub ids and short names, against a hub on localhost: what is fetched, what is cached, and every way it can fail."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge.errors import CheckpointError, ResourceError, UsageError
from specedge.export import hub
from specedge.export.checkpoint import open_checkpoint
from support.checkpoints import make_checkpoint
from support.hub import COMMIT, FakeHub

pytest.importorskip("huggingface_hub")

NAME = "model.decoder.layer_norm.weight"
TINY = "169d4a4341b33bc18d8881c4b69c2e104e1cc0af"  # which the catalogue has for openai/whisper-tiny
CONFIGS = ["config.json", "generation_config.json", "preprocessor_config.json"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Repositories with more files than an export needs."""
    root = tmp_path_factory.mktemp("hub")
    single = make_checkpoint(root / "single", tokenizer=False)
    sharded = make_checkpoint(root / "sharded", shards=2, seed=1, tokenizer=False)
    for folder in (single, sharded):
        for extra in ("README.md", "pytorch_model.bin", "flax_model.msgpack", "vocab.json"):
            (folder / extra).write_text("{}")
    (root / "lora").mkdir()
    (root / "lora" / "adapter_config.json").write_text("{}")
    (root / "empty").mkdir()
    (root / "empty" / "config.json").write_text("{}")
    of_me = {"me/fine-tune": sharded, "me/lora": root / "lora", "me/gated": single, "me/empty": root / "empty"}
    return {"openai/whisper-tiny": single} | of_me


@pytest.fixture(autouse=True)
def in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))


@pytest.fixture
def fake(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub(models, gated=("me/gated",)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield server


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> str:
    """An endpoint nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setenv("HF_ENDPOINT", url)
    return url


@pytest.mark.parametrize("name", ["tiny", "whisper-tiny", "openai/whisper-tiny"])
def test_a_short_name_and_a_hub_id_fetch_the_needed_files_only(
    name: str, fake: FakeHub, models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with open_checkpoint(name) as checkpoint:
        source = checkpoint.spec.source
        assert (source.kind, source.id, source.revision) == ("hub", "openai/whisper-tiny", TINY)
        with open_checkpoint(models["openai/whisper-tiny"]) as local:
            np.testing.assert_array_equal(checkpoint.tensor(NAME), local.tensor(NAME))
    assert sorted(fake.fetched) == sorted([*CONFIGS, "vocab.json", "model.safetensors"])
    assert capsys.readouterr().err == ""  # nothing above a megabyte was fetched


def test_a_name_of_the_catalogue_is_the_published_commit_and_no_other(fake: FakeHub) -> None:
    assert hub.fetch("openai/whisper-tiny")[1] == TINY
    asked = [path for _, path in fake.requests]
    assert asked[0] == f"/api/models/openai/whisper-tiny/revision/{TINY}" and not any("main" in path for path in asked)
    fake.requests.clear()
    hub.fetch("openai/whisper-tiny", revision="main")
    assert fake.requests[0][1] == "/api/models/openai/whisper-tiny/revision/main"
    fake.commits["openai/whisper-tiny"] = COMMIT  # as after a push, or on a mirror
    with pytest.raises(CheckpointError, match=f"has no revision '{TINY}' on http.*; give a --revision that it has"):
        hub.fetch("openai/whisper-tiny")
    fake.revisions = (TINY,)
    with pytest.raises(CheckpointError, match=f"answers with commit {COMMIT} of openai/whisper-tiny instead of {TINY}"):
        hub.fetch("openai/whisper-tiny")


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("http://hub.example", "http://hub.example"),
        ("http://user:secret@hub.example:8080/path", "http://hub.example"),
        ("http://127.0.0.1.example", "http://127.0.0.1.example"),
        ("ftp://localhost", "ftp://localhost"),
        ("hub.example", "no://"),
    ],
)
def test_a_hub_without_https_is_refused_before_it_is_asked(
    endpoint: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(UsageError) as caught:
        hub.fetch("openai/whisper-tiny")
    said = str(caught.value)
    assert said.startswith(f"HF_ENDPOINT is {shown}: ") and "give an https address" in said
    assert "secret" not in said and "\n" not in said


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_a_hub_on_this_machine_needs_no_https(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://{host}:1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(CheckpointError, match="cannot reach"):
        hub.fetch("openai/whisper-tiny")


def test_shards_are_those_the_index_names(fake: FakeHub) -> None:
    with open_checkpoint("me/fine-tune") as checkpoint:
        assert checkpoint.tensor(NAME).shape == (64,)
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert sorted(fake.fetched) == sorted([*CONFIGS, "vocab.json", "model.safetensors.index.json", *shards])


def test_a_second_time_nothing_is_fetched(fake: FakeHub) -> None:
    first = hub.fetch("openai/whisper-tiny")
    fake.requests.clear()
    assert hub.fetch("openai/whisper-tiny") == first
    assert hub.fetch("openai/whisper-tiny", revision="main") == first
    assert fake.fetched == []


def test_a_download_whose_connection_breaks_goes_on_where_it_was(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)  # of what is kept
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    fake.cuts["model.safetensors"] = 5500
    folder, _ = hub.fetch("openai/whisper-tiny")
    source = fake.models["openai/whisper-tiny"] / "model.safetensors"
    assert (folder / "model.safetensors").read_bytes() == source.read_bytes()
    assert fake.ranges == [("model.safetensors", 5000)] and not fake.cuts


def _stop(fake: FakeHub, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Fetch with a stop in the middle of the weights; what is left of them."""

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    fake.cuts["model.safetensors"] = 5500
    with monkeypatch.context() as patched:
        patched.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)  # of what is kept
        patched.setattr("time.sleep", interrupt)  # before it goes on by itself
        with pytest.raises(KeyboardInterrupt):
            hub.fetch("openai/whisper-tiny")
    return list(cache_dir.glob("models--openai--whisper-tiny/blobs/*.incomplete"))


def test_a_download_that_was_stopped_goes_on_within_the_file(
    fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (part,) = _stop(fake, tmp_path, monkeypatch)
    source = (fake.models["openai/whisper-tiny"] / "model.safetensors").read_bytes()
    assert part.read_bytes() == source[:5000] and not fake.ranges
    folder, _ = hub.fetch("openai/whisper-tiny")
    assert (folder / "model.safetensors").read_bytes() == source
    assert fake.ranges == [("model.safetensors", 5000)] and not part.exists()
    assert fake.fetched.count("model.safetensors") == 2


@pytest.mark.parametrize("damage", [b"x" * 5000, b"x" * 10_000_000])
def test_a_part_that_is_not_of_the_file_is_thrown_away(
    damage: bytes, fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (part,) = _stop(fake, tmp_path, monkeypatch)
    part.write_bytes(damage)
    if len(damage) == 5000:
        with pytest.raises(CheckpointError, match="model.safetensors: http.* sent other bytes than the published ones"):
            hub.fetch("openai/whisper-tiny")
        assert not part.exists()
    folder, _ = hub.fetch("openai/whisper-tiny")
    source = fake.models["openai/whisper-tiny"] / "model.safetensors"
    assert (folder / "model.safetensors").read_bytes() == source.read_bytes()


def test_a_cache_without_links_is_left_to_the_hub_s_client(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.are_symlinks_supported", lambda folder: False)
    folder, _ = hub.fetch("openai/whisper-tiny")
    assert (folder / "model.safetensors").is_file() and fake.fetched.count("model.safetensors") == 1


def test_offline_only_the_cache_counts(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    online = hub.fetch("openai/whisper-tiny")
    fake.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub.fetch("openai/whisper-tiny") == online
    assert hub.fetch("openai/whisper-tiny", revision=TINY) == online
    with pytest.raises(CheckpointError, match="me/fine-tune is not in the hub's cache, and HF_HUB_OFFLINE is set"):
        hub.fetch("me/fine-tune")
    with pytest.raises(CheckpointError, match="not in the hub's cache"):
        hub.fetch("openai/whisper-tiny", revision="other")
    assert fake.requests == []


def test_a_cached_copy_that_lacks_a_shard_does_not_count(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = hub.fetch("me/fine-tune")
    (folder / "model-00002-of-00002.safetensors").unlink()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError, match="not in the hub's cache"):
        hub.fetch("me/fine-tune")


def test_no_network_is_one_line_and_the_cache_still_works(fake: FakeHub, request: pytest.FixtureRequest) -> None:
    first = hub.fetch("openai/whisper-tiny")
    url = request.getfixturevalue("dead")
    assert hub.fetch("openai/whisper-tiny") == first
    with pytest.raises(CheckpointError, match=f"cannot reach {url} to fetch me/fine-tune") as caught:
        hub.fetch("me/fine-tune")
    assert caught.value.exit_code == 4 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hub_id", "revision", "message"),
    [
        ("me/empty", None, r"it needs config\.json and one of model\.safetensors"),
        ("me/none", None, "there is no model me/none on http.*, or it is private"),
        ("me/gated", None, "me/gated is gated: accept its terms at http.*/me/gated"),
        ("me/lora", None, r"me/lora is an adapter \(LoRA\): download it"),
        ("openai/whisper-tiny", "v9", "openai/whisper-tiny has no revision 'v9'"),
        ("a/--b..c", None, "is no hub id"),
    ],
)
def test_what_the_hub_refuses_is_one_line(hub_id: str, revision: str | None, message: str, fake: FakeHub) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        hub.fetch(hub_id, revision=revision)
    assert "\n" not in str(caught.value)


def test_an_index_cannot_name_files_elsewhere(fake: FakeHub, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "evil", shards=2, tokenizer=False)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {NAME: "../../secret"}}))
    fake.models["me/evil"] = folder
    with pytest.raises(CheckpointError, match="expected the name of a file beside it"):
        hub.fetch("me/evil")


def test_a_full_disk_is_a_resource_error(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def full(*_: Any, **__: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", full)
    with pytest.raises(ResourceError, match="hub's cache cannot be written: .*No space left.*; free some space"):
        hub.fetch("openai/whisper-tiny")


@pytest.mark.parametrize("name", ["tinny", "C:\\models\\x", "../up", "a/b/c", "tiny.pt", "x.safetensors"])
def test_a_name_that_means_nothing_says_what_was_looked_for(name: str) -> None:
    with pytest.raises(CheckpointError, match="is known, and there is no such folder or file"):
        hub.resolve(name)
