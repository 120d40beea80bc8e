"""What pyproject.toml cannot say: of the bundled models the wheel carries the demo alone, without its decoder heads.

The whole models would triple the download. `distributions/demo` installs them beside this wheel.
"""

import hashlib
import json
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HEADS = ("medusa-linear", "medusa-block", "medusa-block-kv", "mtp-latent", "mtp-projection")


class WithoutDrafts(build_py):
    """The manifest lists every file of a bundle, so it loses the same entries as the folder."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        bundled = Path(self.build_lib, "specedge", "models", "bundled")
        for model in bundled.glob("demo-*"):
            shutil.rmtree(model)
        manifest = bundled / "demo" / "specedge.json"
        said = json.loads(manifest.read_text(encoding="utf-8"))
        for head in HEADS:
            del said["graphs"][head]
            for name in (f"{head}.onnx", f"{head}.data"):
                del said["files"][name]
                (bundled / "demo" / name).unlink()
        del said["manifest_sha256"]  # of the rest, as runtime/bundle/manifest.py writes it
        compact = json.dumps(said, sort_keys=True, separators=(",", ":"))
        said["manifest_sha256"] = hashlib.sha256(compact.encode()).hexdigest()
        manifest.write_text(json.dumps(said, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


setup(cmdclass={"build_py": WithoutDrafts})
