"""Small edits of a checkpoint's files, for tests of what happens then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return dict(load_file(path))


def write_tensors(path: Path, values: dict[str, np.ndarray]) -> None:
    from safetensors.numpy import save_file

    save_file(values, path)
