"""Rooms and who may import whom; what starting costs; house rules that a reviewer would otherwise have to keep."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent

ALLOWED: dict[str, str] = {
    # what a line is
    "eventstore.errors": "",
    "eventstore.format": "eventstore.errors",
    "eventstore.redaction": "eventstore.errors eventstore.format",
    # what records mean
    "projections": "eventstore.errors eventstore.format eventstore.redaction",
    # storage, downwards only, never projections
    "eventstore.stream": "eventstore.errors eventstore.format",
    "eventstore.run": "eventstore.errors eventstore.format eventstore.stream",
    "eventstore.results": "eventstore.errors eventstore.format eventstore.redaction eventstore.run eventstore.stream",
    # composers: storage and projections together
    "eventstore.recording": """
        eventstore.errors eventstore.format eventstore.redaction eventstore.results eventstore.run eventstore.stream
        projections
    """,
    "eventstore.history": """
        eventstore.errors eventstore.format eventstore.redaction eventstore.results eventstore.run eventstore.stream
        projections
    """,
    "eventstore.operations": """
        eventstore.errors eventstore.format eventstore.history eventstore.recording eventstore.redaction
        eventstore.results eventstore.run eventstore.stream projections
    """,
    # words for people
    "cli": "eventstore.errors eventstore.history eventstore.operations",
}
"""Room → the rooms it may import, its own aside. The rule in three lines is in ARCHITECTURE.md."""

WORLD = {"os", "io", "time", "random", "pathlib", "socket", "subprocess", "tempfile", "shutil", "threading", "secrets"}
PURE = ("eventstore.format", "eventstore.redaction", "projections")
ONLY_IN = {"duckdb": ("eventstore.history",), "click": ("cli",), "rich": ("cli", "eventstore.recording")}
"""Third-party packages that stay in some rooms."""
MOST_MODULES = 15


class Import(NamedTuple):
    """One import statement: where it is, and the absolute name of what it imports."""

    path: Path
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.name}"


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def room_of(name: str) -> str:
    """Return the room of a dotted name: `eventstore.stream` of `eventstore.stream.log`; a foreign name's first part."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "eventstore" else parts[0]


def room_of_file(path: Path) -> str:
    return room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """Return all imports of a file, relative ones resolved, late ones included."""
    package = path.relative_to(ROOT).parent.parts
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [Import(path, node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            found += [Import(path, node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return tuple(found)


def all_imports() -> Iterator[Import]:
    for folder in ("eventstore", "projections", "cli"):
        for path in modules(folder):
            yield from imports_of(path)


def test_rooms_import_downwards_only() -> None:
    """No import goes to a room that the table does not allow; each is named with its file and line."""
    ours = ("eventstore", "projections", "cli")
    wrong = [
        str(found)
        for found in all_imports()
        if found.name.split(".")[0] in ours
        and found.path.name != "__init__.py"
        and (target := room_of(found.name)) != (own := room_of_file(found.path))
        and target not in ALLOWED.get(own, "").split()
    ]
    assert not wrong, "\n".join(wrong)


def test_no_allowance_is_unused() -> None:
    """An allowance that no import needs is removed from the table."""
    used = {(room_of_file(found.path), room_of(found.name)) for found in all_imports()}
    unused = [
        f"{own} → {target}" for own, rooms in ALLOWED.items() for target in rooms.split() if (own, target) not in used
    ]
    assert not unused, unused


def test_rooms_have_no_circle() -> None:
    """The table is in an order in which every room imports earlier ones only."""
    order = [*ALLOWED]
    wrong = [
        f"{own} → {target}"
        for own, rooms in ALLOWED.items()
        for target in rooms.split()
        if order.index(target) >= order.index(own) and (own, target) != ("eventstore.history", "eventstore.operations")
    ]
    assert not wrong, wrong


def test_every_room_is_in_the_table() -> None:
    rooms = {room_of_file(path) for folder in ("eventstore", "projections", "cli") for path in modules(folder)}
    assert rooms - {"eventstore.__init__"} == {*ALLOWED}


def test_pure_rooms_know_no_world() -> None:
    """No disk, clock or randomness where lines and their meaning are decided."""
    wrong = [
        str(found)
        for found in all_imports()
        if room_of_file(found.path).startswith(PURE) and found.name.split(".")[0] in WORLD | {"duckdb", "click", "rich"}
    ]
    wrong += [
        f"{path.relative_to(ROOT)} asks the clock"
        for folder in ("projections", "eventstore/format", "eventstore/redaction")
        for path in modules(folder)
        if re.search(r"datetime\.now|time\.time\b", path.read_text())
    ]
    assert not wrong, "\n".join(wrong)


def test_packages_of_others_stay_in_their_rooms() -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if room_of_file(found.path) not in ONLY_IN.get(found.name.split(".")[0], (room_of_file(found.path),))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("top", ["eventstore", "projections"])
def test_no_folder_is_crowded(top: str) -> None:
    """A folder with more than fifteen modules is no room any more; `cli/` has one file a command and is left out."""
    folders = {path.parent for path in modules(top)}
    crowded = {
        str(folder.relative_to(ROOT)): count
        for folder in folders
        if (count := sum(path.name != "__init__.py" for path in folder.glob("*.py"))) > MOST_MODULES
    }
    assert not crowded


def drawn_modules() -> list[str]:
    """Return the paths of all modules in ARCHITECTURE.md's tree, in its order."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    tree = text.partition("## Where things are\n")[2].partition("\n#")[0]
    drawn: list[str] = []
    folders: list[str] = []
    for line in tree.splitlines():
        found = re.match(r"    ((?:    )*)(\w+/|\w+\.py) +\S", line)
        assert found or not line, (
            f"ARCHITECTURE.md: a line of the tree that names nothing, or does not say what for: {line}"
        )
        if found:
            folders[len(found[1]) // 4 :] = [found[2]]
            if found[2].endswith(".py"):
                drawn.append("".join(folders))
    return drawn


def test_the_tree_names_every_module_and_none_that_is_not_there() -> None:
    """A stranger finds each file with one line about it; who adds a module adds a line to ARCHITECTURE.md."""
    there = {
        path.relative_to(ROOT).as_posix()
        for folder in ("eventstore", "projections", "cli")
        for path in modules(folder)
        if path.name != "__init__.py"
    } | {"compass_es.py"}
    drawn = drawn_modules()
    assert sorted(there - {*drawn}) == [] and sorted({*drawn} - there) == []
    assert len(drawn) == len({*drawn})


@pytest.mark.parametrize(
    ("question", "words", "answer"),
    [
        ("where is fsync", ["fsync"], "eventstore/stream/group_commit.py"),
        ("what does `show` print", ["`show`"], "cli/show.py"),
        ("where does a task's status come from", ["task's status"], "projections/timeline/timeline.py"),
        ("who decides that a writer is dead", ["writer", "dead"], "eventstore/run/liveness.py"),
    ],
)
def test_the_tree_answers_in_one_guess(question: str, words: list[str], answer: str) -> None:
    """The first line of the tree that has the words of a question names the file that answers it."""
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Where things are\n")[2]
    first = next(line for line in text.splitlines() if all(word in line for word in words))
    assert first.split()[0] == Path(answer).name and answer in drawn_modules(), question


def loaded_by(code: str) -> set[str]:
    """Names of all modules that a fresh interpreter has loaded after running `code`."""
    script = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stderr.split())


def test_starting_is_light() -> None:
    """Help, and importing the library, load neither duckdb nor rich nor asyncio, and no rule about secrets."""
    for name in ("eventstore", "compass_es"):
        assert not loaded_by(f"import {name}") & {"duckdb", "rich", "click", "asyncio", "msgspec"}
    helped = loaded_by("import compass_es\ntry: compass_es.main(['--help'])\nexcept SystemExit: pass")
    assert "cli.main" in helped and not helped & {"duckdb", "rich", "asyncio", "projections", "eventstore.redaction"}


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
