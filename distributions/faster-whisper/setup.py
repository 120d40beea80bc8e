"""Adds the .pth file to the wheel, which pyproject.toml cannot."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithPath(build_py):
    """Python reads the file at its start and puts the folder behind site-packages."""

    def run(self) -> None:
        super().run()
        Path(self.build_lib, "specedge_faster_whisper.pth").write_text("specedge/compat\n", encoding="utf-8")


setup(cmdclass={"build_py": WithPath})
