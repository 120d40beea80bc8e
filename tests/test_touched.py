"""What a whole transcription touches: no network, no other program, no file written but the transcript and caches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import DEMO, SAMPLES_FOLDER

TALK = SAMPLES_FOLDER / "maintenance.wav"

# Runs in the fresh process: what Python tells an audit hook of before it happens.
_PROBE = """
import json, os, sys
touched, written = [], []
def hook(event, args):
    if event.startswith(("urllib.", "http.", "ftplib.", "smtplib.")) or event in (
        "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto",
        "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "pickle.find_class",
    ):
        touched.append(event)
    elif event == "ctypes.dlopen" and args[0] is not None:
        touched.append(f"{event} {args[0]}")
    elif event == "open":
        if args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            written.append(args[0])
    elif event in ("os.rename", "os.link", "os.symlink"):
        written.extend(args[:2])
    elif event in ("os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "shutil.rmtree", "sqlite3.connect"):
        written.append(args[0])
from specedge.runtime.cli.main import main
sys.addaudithook(hook)
code = main(sys.argv[1:])
paths = sorted({os.path.abspath(os.fsdecode(path)) for path in written if not isinstance(path, int)})
print("\\n" + json.dumps({"code": code, "touched": sorted(set(touched)), "written": paths}))
"""


@pytest.mark.parametrize(
    "options", [(), ("--drafter", "ngram", "--remember", "--word-timestamps", "--vad")], ids=["plain", "with all"]
)
def test_a_transcription_writes_its_output_and_caches_and_asks_nobody(options: tuple[str, ...], tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("user", "home", "cache", "out", "tmp", "here")}
    for name in ("user", "tmp", "here"):
        places[name].mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SPECEDGE", "XDG"))}
    environment |= {"HOME": str(places["user"]), "TMPDIR": str(places["tmp"])}
    environment |= {"SPECEDGE_HOME": str(places["home"]), "SPECEDGE_CACHE": str(places["cache"])}
    arguments = ["transcribe", str(TALK), "-o", str(places["out"]), "-m", str(DEMO), "-f", "txt,json", *options]
    # -B, because where the tree is installed to be edited, Python keeps bytecode beside its modules.
    command = [sys.executable, "-I", "-B", "-c", _PROBE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=places["here"], timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["code"] == 0, done.stderr
    assert found["touched"] == []
    allowed = tuple(str(places[name]) for name in ("home", "cache", "out"))
    assert [path for path in found["written"] if not path.startswith(allowed) and path != os.devnull] == []
    # What native libraries write tells no hook of itself, but would lie here.
    assert not [path for name in ("user", "tmp", "here") for path in places[name].iterdir()]
    assert sorted(path.name for path in places["out"].iterdir()) == ["maintenance.json", "maintenance.txt"]
    assert places["home"].exists() == ("--remember" in options)
