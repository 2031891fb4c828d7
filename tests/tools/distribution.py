"""The distributions of this project, built from a copy of its sources, and environments that hold nothing else."""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SOURCES = ("compass_es.py", "cli", "eventstore", "projections", "docs", "tests", "benchmarks")
_FILES = ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "ARCHITECTURE.md", "LICENSE")
_SETUPTOOLS = 77
"""The version that pyproject.toml asks for. Where an older one is installed, the build fetches one for itself."""


def copy_sources(target: Path) -> Path:
    """Copy what a clone holds to `target`, so that a build leaves nothing in this one."""
    target.mkdir(parents=True)
    for name in _FILES:
        shutil.copy2(ROOT / name, target)
    for name in _SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
        else:
            shutil.copy2(ROOT / name, target)
    return target


def build(sources: Path, kind: str) -> Path:
    """Build the `wheel` or the `sdist` of a folder of sources and return its file."""
    here = int(metadata.version("setuptools").partition(".")[0]) >= _SETUPTOOLS
    argv = [sys.executable, "-m", "build", f"--{kind}", *(["--no-isolation"] if here else []), "--outdir", "dist", "."]
    done = subprocess.run(argv, cwd=sources, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    suffix = ".whl" if kind == "wheel" else ".tar.gz"
    (built,) = (sources / "dist").glob(f"*{suffix}")
    return built


class Environment:
    """An environment with one wheel in it. What the wheel needs is read from the environment of the tests."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        _run(sys.executable, "-m", "venv", "--without-pip", folder)
        self.python = folder / "bin" / "python"
        self.command = folder / "bin" / "compass-es"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site_packages = folder / "lib" / version / "site-packages"
        _run(sys.executable, "-m", "pip", "--python", self.python, "install", "-q", "--no-deps", "--no-index", wheel)
        # Behind the wheel's own files. A .pth file of that folder is not followed, so this checkout is not found by it.
        (self.site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(self, *argv: object, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of this environment with nothing of the tests' own environment variables for Python."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return subprocess.run(
            [*map(str, argv)], cwd=cwd, env=clean | environment, capture_output=True, text=True, timeout=120
        )


def _run(*argv: object) -> None:
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
