"""Archives on a Dask cluster: many files, each transcribed to one result by whichever worker comes first.

`driver.py` is the way in and gives out the files, `worker.py` is what a worker does. The extra `[fleet]` has
the libraries.
"""

from __future__ import annotations

from .driver import transcribe
from .folder import Record

__all__ = ["Record", "transcribe"]
