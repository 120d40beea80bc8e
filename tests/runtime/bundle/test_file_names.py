"""A name that passes stays inside the folder; the refusals themselves are in the hostile table of test_manifest.py."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.runtime.bundle.manifest import is_file_name


@pytest.mark.parametrize("name", ["encoder.onnx", "maps/x.tmap", "draft/specedge.json", "a-b_c+d.1", "_", "v1.0/x"])
def test_names_that_are_fine(name: str) -> None:
    assert is_file_name(name)


@given(st.text(max_size=12) | st.from_regex(r"[a./\\:]{1,6}", fullmatch=True))
def test_no_accepted_name_leaves_the_folder(name: str) -> None:
    if is_file_name(name):
        root = os.path.abspath("root")
        joined = os.path.normpath(os.path.join(root, name))
        assert os.path.commonpath([root, joined]) == root and joined != root
        assert os.path.relpath(joined, root).replace(os.sep, "/") == name
