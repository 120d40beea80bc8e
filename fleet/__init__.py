"""Archives on a Dask cluster: many files, each transcribed to one result by whichever worker comes first.

`run.py` is the way in, `worker.py` what a worker does, `driver.py` who gives out the files. The extra `[fleet]` has the
libraries.
"""

from __future__ import annotations

from .records import Record
from .run import transcribe

__all__ = ["Record", "transcribe"]
