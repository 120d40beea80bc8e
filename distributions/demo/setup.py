"""Copies the models from specedge's source, which pyproject.toml cannot."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

MODELS = Path(__file__).resolve().parents[2] / "models" / "bundled"


class WithModels(build_py):
    def run(self) -> None:
        super().run()
        for model in sorted(MODELS.glob("demo*")):
            shutil.copytree(model, Path(self.build_lib, "specedge_demo", "bundled", model.name), dirs_exist_ok=True)


setup(cmdclass={"build_py": WithModels})
