"""Tell Home Assistant's supervisor where Wyoming is, then become the server."""

import json
import os
import socket
import urllib.request
from pathlib import Path

PORT = 10300
SERVER = "/usr/local/specedge/bin/specedge"


def command(options: dict[str, object]) -> list[str]:
    """The command line of the server for the options of the app."""
    line = [SERVER, "serve", "--host", "0.0.0.0", "--wyoming", f"tcp://0.0.0.0:{PORT}"]
    for name in ("model", "drafter", "threads"):
        if options.get(name):
            line += [f"--{name}", str(options[name])]
    return line


def announce(token: str) -> None:
    """Post the address to the supervisor, which shows it as discovered; a refusal is printed and the server starts."""
    said = {"service": "wyoming", "config": {"uri": f"tcp://{socket.gethostname()}:{PORT}"}}
    request = urllib.request.Request(
        "http://supervisor/discovery",
        data=json.dumps(said).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except OSError as error:
        print(f"Home Assistant does not take the discovery ({error}): add it by hand, port {PORT}", flush=True)


def main() -> None:
    line = command(json.loads(Path("/data/options.json").read_text(encoding="utf-8")))
    token = os.environ.get("SUPERVISOR_TOKEN")
    if token:
        announce(token)
    os.execv(line[0], line)


if __name__ == "__main__":
    main()
