"""What holds for every test: a store and caches of its own, and no network unless the test is marked `network`."""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.paths import DEMO

# Before any test module is imported, because libraries read these when they are.
_HOME = tempfile.TemporaryDirectory(prefix="specedge-tests-", ignore_cleanup_errors=True)
os.environ["SPECEDGE_HOME"] = os.path.join(_HOME.name, "home")
os.environ["SPECEDGE_CACHE"] = os.path.join(_HOME.name, "cache")
os.environ["XDG_CACHE_HOME"] = os.environ["SPECEDGE_CACHE"]
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# What a command without -m takes, in place of a model that would be fetched; installed under its name, too.
os.environ["SPECEDGE_MODEL"] = str(DEMO)
os.makedirs(os.path.join(os.environ["SPECEDGE_HOME"], "models"))
os.symlink(DEMO, os.path.join(os.environ["SPECEDGE_HOME"], "models", "demo"))
# The whole lane takes a process for each core: threads of torch's would wait for one another's turn, in every step.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts what it runs in the background with Ctrl-C ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no failure, and the same commit must give the same result.
settings.register_profile(
    "specedge", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("specedge")

_STARTED = pytest.StashKey[float]()
_LOOPBACK = ("127.", "::1", "localhost")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole lane takes two processes where pytest-xdist is there and no number was given."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.getoption("usepdb")
    is_worker = hasattr(config, "workerinput")
    if whole and not is_worker and getattr(config.option, "numprocesses", 0) is None:
        config.option.numprocesses, config.option.dist = 2, "loadfile"


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the lanes (lanes.py) give tests that may take longer than there is time."""
    parser.addoption("--limit-s", type=float, default=float("inf"), help="begin no test after so many seconds")
    parser.addoption("--order-seed", type=int, help="take the modules in an order of this seed's")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("order_seed")
    if seed is not None:
        items.sort(key=lambda item: random.Random(f"{seed} {item.path.name}").random())
    gc.freeze()  # what is here by now is no garbage: to look through it takes half a second each time


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_STARTED] = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() - item.config.stash[_STARTED] > item.config.getoption("limit_s"):
        pytest.skip("the time of this lane is over")


def pytest_unconfigure() -> None:
    _HOME.cleanup()


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Connections leave this machine only in tests that say so."""
    if request.node.get_closest_marker("network") is None:
        connect = socket.socket.connect

        def only_here(self: socket.socket, address: Any) -> None:
            if self.family != getattr(socket, "AF_UNIX", None) and not str(address[0]).startswith(_LOOPBACK):
                raise OSError(f"this test is not marked `network`, but connects to {address!r}")
            connect(self, address)

        monkeypatch.setattr(socket.socket, "connect", only_here)
    yield
