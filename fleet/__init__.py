"""Archives on a cluster: many files, each transcribed to one result by whichever worker comes first.

`transcribe` (`run.py`) is the way in. `worker.py` is what a worker does, `driver.py` who gives out the files,
`cluster.py` what a cluster is. The extra `[fleet]` has the libraries.
"""

from __future__ import annotations

from .records import Record
from .run import transcribe

__all__ = ["Record", "transcribe"]
