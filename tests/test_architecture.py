"""Rooms and who may import whom; what starting costs; house rules that a reviewer would otherwise have to keep."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PURE = {
    "events",
    "records",
    "codec",
    "errors",
    "seal",
    "chain",
    "salvage",
    "redact",
    "secret_assignments",
    "secret_names",
    "secret_shapes",
    "secret_text",
}
VOCABULARY = {"events", "records", "codec", "errors", "redact", "seal"}
COMPOSERS = {
    "replaying",
    "parallel",
    "recorder",
    "sessions",
    "live",
    "history",
    "verifying",
    "verifying_details",
    "verifying_files",
    "verifying_texts",
    "reuse",
    "reuse_apply",
    "result_recovery",
    "repair",
    "closing",
    "diagnosing",
    "aftermath",
    "stalling",
    "following",
    "boards",
    "taskpages",
    "comparing",
    "watching",
}
"""Modules of eventstore that put a scan and a projection together; nothing else there knows of projections."""
WORLD = {"os", "io", "time", "random", "pathlib", "socket", "subprocess", "tempfile", "shutil", "threading", "secrets"}


def imports_of(path: Path) -> set[str]:
    """Absolute names of all modules that a file imports, relative ones resolved, late ones included."""
    package = path.relative_to(ROOT).parent.parts
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def room_of(name: str) -> tuple[str, str]:
    parts = name.split(".")
    return parts[0], parts[1] if len(parts) > 1 else ""


@pytest.mark.parametrize("path", modules("projections"), ids=lambda p: p.stem)
def test_projections_are_pure(path: Path) -> None:
    """No disk, clock or randomness, and of eventstore only the vocabulary."""
    for name in imports_of(path):
        room, module = room_of(name)
        assert room not in WORLD, f"{path.name} imports {name}"
        assert room not in ("cli", "duckdb", "click", "rich"), f"{path.name} imports {name}"
        if room == "eventstore":
            assert module in VOCABULARY or module == "", f"{path.name} imports {name}"
    assert "datetime.now" not in path.read_text() and "time.time" not in path.read_text()


@pytest.mark.parametrize("path", modules("eventstore"), ids=lambda p: p.stem)
def test_eventstore_knows_no_commands_and_only_composers_know_projections(path: Path) -> None:
    """duckdb stays in history; pure modules import no others."""
    own = path.relative_to(ROOT / "eventstore").parts[0].removesuffix(".py")
    for name in imports_of(path):
        room, module = room_of(name)
        assert room not in ("cli", "click"), f"{path.name} imports {name}"
        assert room != "duckdb" or own == "history", f"{path.name} imports {name}"
        assert room != "projections" or own in COMPOSERS, f"{path.name} imports {name}"
        if own in PURE:
            assert room not in WORLD, f"{path.name} is pure and imports {name}"
            assert room != "eventstore" or module in PURE or module == "", f"{path.name} imports {name}"


@pytest.mark.parametrize("path", modules("cli"), ids=lambda p: p.stem)
def test_commands_leave_duckdb_to_history(path: Path) -> None:
    """A command parses, calls, prints and exits."""
    assert not {name for name in imports_of(path) if room_of(name)[0] == "duckdb"}


def loaded_by(code: str) -> set[str]:
    """Names of all modules that a fresh interpreter has loaded after running `code`."""
    script = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stderr.split())


def test_starting_is_light() -> None:
    """Help, and importing the library, load neither duckdb nor rich nor asyncio."""
    assert not loaded_by("import eventstore") & {"duckdb", "rich", "click", "asyncio", "msgspec"}
    helped = loaded_by("import cli.main\ntry: cli.main.main(['--help'])\nexcept SystemExit: pass")
    assert "click" in helped and not helped & {"duckdb", "rich", "asyncio"}


def tracked_text() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT)
    if listed.returncode:
        pytest.skip("not a git checkout")
    kinds = {".py", ".md", ".toml", ".sql", ".yml", ".cfg", ""}
    return [ROOT / name for name in listed.stdout.splitlines() if Path(name).suffix in kinds and "data/" not in name]


def test_the_project_speaks_of_itself_alone() -> None:
    """No path of a machine, no registry's address."""
    foreign = re.compile(r"/(home|work)/\w|://[^ ]*(pypi|npmjs|debian)\.")
    for path in tracked_text():
        if path.exists() and path != Path(__file__):
            found = foreign.search(path.read_text(encoding="utf-8"))
            assert found is None, f"{path.name}: {found and found[0]}"
