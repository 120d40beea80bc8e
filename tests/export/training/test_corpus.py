"""Shards on disk, and the text lists that the package carries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specedge.errors import UsageError
from specedge.export.training.corpus import Utterance, list_lines, load_shards, training_shards, write_shard


def _utterance(n_samples: int, text: str = "Check.") -> Utterance:
    samples = np.arange(n_samples, dtype=np.int16)
    return Utterance(samples=samples, text=text, voice="v", source="s", start=1, end=n_samples - 1)


def test_a_shard_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = [_utterance(5), _utterance(7, "Stop.")]
    write_shard(tmp_path, "one", written)
    ((name, read),) = load_shards(tmp_path)
    assert name == "one"
    for left, right in zip(written, read, strict=True):
        assert (left.text, left.start, left.end) == (right.text, right.start, right.end)
        np.testing.assert_array_equal(left.samples, right.samples)


def test_a_shard_without_its_json_is_not_there_yet(tmp_path: Path) -> None:
    write_shard(tmp_path, "one", [_utterance(5)])
    write_shard(tmp_path, "two", [_utterance(5)])
    (tmp_path / "two.json").unlink()
    assert [name for name, _ in load_shards(tmp_path)] == ["one"]
    assert list(load_shards(tmp_path, known=frozenset({"one"}))) == []


@pytest.mark.parametrize("name", ["maintenance.train", "maintenance.dev", "notes.train", "notes.dev"])
def test_the_lists_are_carried_and_whole(name: str) -> None:
    lines = list_lines(name)
    assert len(lines) == (20000 if name.endswith("train") else 400)
    assert all(line[0].isupper() and line[-1] in ".?" for line in lines)


def test_an_unknown_list_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'nosuch'"):
        list_lines("nosuch")


def _write(folder: Path, name: str, *texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_shard(folder, name, [_utterance(5, text) for text in texts])


def test_training_reads_all_folders_but_those_for_measuring(tmp_path: Path) -> None:
    trained, kept = list_lines("notes.train")[0], list_lines("notes.dev")[0]
    _write(tmp_path / "train", "one", trained)
    _write(tmp_path / "more" / "train", "one", trained)
    _write(tmp_path / "dev", "notes-dev", kept)
    _write(tmp_path / "digits-dev-1", "digits-dev-1-000", "Four.")
    _write(tmp_path / "digits-train-1", "digits-train-1-000", "Four.")
    names = {name for name, _ in training_shards(tmp_path, frozenset())}
    assert names == {"train/one", "more/train/one", "digits-train-1/digits-train-1-000"}
    assert [name for name, _ in training_shards(tmp_path, frozenset(names - {"train/one"}))] == ["train/one"]


def test_dev_sentences_are_never_trained_on_whatever_folder_they_lie_in(tmp_path: Path) -> None:
    """Sentences of the dev lists in training voices were once learned, because they lay beside the training shards."""
    _write(tmp_path / "train", "one", list_lines("notes.train")[0])
    _write(tmp_path / "train", "two", list_lines("maintenance.train")[0], list_lines("maintenance.dev")[7])
    with pytest.raises(UsageError, match="train/two: holds what models are measured on"):
        list(training_shards(tmp_path, frozenset()))


def test_a_dev_shard_of_digits_is_refused_in_another_folder(tmp_path: Path) -> None:
    _write(tmp_path / "train", "digits-dev-1-000", "Four.")
    with pytest.raises(UsageError, match="measured on"):
        list(training_shards(tmp_path, frozenset()))
