"""What a user installs: the wheel in an empty environment, its command among foreign modules, and the sdist."""

import ast
import json
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

import compass_es
from tests.tools.distribution import Environment, build, copy_sources
from tests.tools.recorded import ROOT as RUNS_ROOT
from tests.tools.recorded import RUNS

CHECKOUT = Path(__file__).parent.parent
SHADOWS = ("cli", "eventstore", "projections")


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, to build from."""
    return copy_sources(tmp_path_factory.mktemp("build") / "compass-es")


@pytest.fixture(scope="session")
def wheel(sources: Path) -> Path:
    return build(sources, "wheel")


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel, for reading only."""
    return Environment(tmp_path_factory.mktemp("installed") / "env", wheel)


@pytest.fixture
def own_environment(wheel: Path, tmp_path: Path) -> Environment:
    """An environment with the wheel that a test may change."""
    return Environment(tmp_path / "env", wheel)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with one run that was killed, without its progress.json."""
    key = RUNS["r_kill_mid"]
    shutil.copytree(RUNS_ROOT / key, tmp_path / "results" / key)
    (tmp_path / "results" / key / "progress.json").unlink()
    return tmp_path / "results"


def test_the_wheel_replays_verifies_and_answers_queries(installed: Environment, results: Path, tmp_path: Path) -> None:
    """The packages and the SQL files are all in it; nothing comes from a checkout."""
    where = installed.run(installed.python, "-c", "import eventstore; print(eventstore.__file__)", cwd=tmp_path)
    assert where.stdout.startswith(str(installed.site_packages))
    run = results / RUNS["r_kill_mid"]
    replayed = installed.run(installed.command, "replay", run, "--json", cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stderr
    assert json.loads(replayed.stdout)["written"] == ["progress.json"] and (run / "progress.json").exists()
    verified = installed.run(installed.command, "verify", results, "--json", cwd=tmp_path)
    assert verified.returncode in (0, 1), verified.stderr
    assert json.loads(verified.stdout)["runs"] == 1
    catalog = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    sql = "SELECT total_tasks FROM runs"
    asked = installed.run(installed.command, "query", sql, results, "--json", cwd=tmp_path, **catalog)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout) == [{"total_tasks": 60}]
    canned = installed.run(installed.command, "query", "--list", "--json", cwd=tmp_path)
    assert canned.returncode == 0 and "success-rate" in canned.stdout


def test_the_wheel_holds_every_module_and_no_test(wheel: Path) -> None:
    """The package list of pyproject.toml names every folder; data files come along."""
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {"compass_es.py"} | {
        path.relative_to(CHECKOUT).as_posix()
        for top in SHADOWS
        for path in (CHECKOUT / top).rglob("*")
        if path.suffix in (".py", ".sql", ".typed")
    }
    assert wanted <= held, sorted(wanted - held)
    assert {name.split("/")[0] for name in held if ".dist-info" not in name} == {"compass_es.py", *SHADOWS}


def test_the_sdist_leaves_tests_out_and_builds_the_same_wheel(sources: Path, wheel: Path, tmp_path: Path) -> None:
    """Tests without their recorded runs would fail for whoever unpacks them."""
    sdist = build(copy_sources(tmp_path / "copy"), "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert not (unpacked / "tests").exists() and not (unpacked / "benchmarks").exists()
    assert (unpacked / "docs" / "cli.md").exists()
    again = build(unpacked, "wheel")
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize("name", SHADOWS)
@pytest.mark.parametrize("as_folder", [False, True], ids=["file", "folder"])
@pytest.mark.parametrize("on_path", [False, True], ids=["current folder", "PYTHONPATH"])
def test_modules_of_the_same_name_do_not_break_the_command(
    installed: Environment, results: Path, tmp_path: Path, name: str, as_folder: bool, on_path: bool
) -> None:
    """A user's `cli.py` or `eventstore/`, on PYTHONPATH or where the command is called, is not imported."""
    folder = tmp_path / "mine"
    foreign = folder / name / "__init__.py" if as_folder else folder / f"{name}.py"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("raise SystemExit('the wrong module was imported')\n")
    options = {"PYTHONPATH": str(folder)} if on_path else {}
    cwd = tmp_path if on_path else folder
    for argv in ([installed.command], [installed.python, "-m", "compass_es"]):
        done = installed.run(*argv, "runs", results, "--json", cwd=cwd, **options)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["runs"]


def test_processes_of_a_first_index_find_our_modules_too(installed: Environment, tmp_path: Path) -> None:
    """The readers of a large history are interpreters of their own, with the same PYTHONPATH."""
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in SHADOWS:
        (mine / f"{name}.py").write_text("raise SystemExit('the wrong module was imported')\n")
    script = (
        "import sys\n"
        f"sys.path[1:1] = [{str(installed.site_packages)!r}]\n"
        "from eventstore.history.catalog.workers import Readers\n"
        f"sys.path[1:2] = []; sys.path.insert(0, {str(mine)!r})\n"
        "from operator import add\n"
        "with Readers(1, add) as readers: print(readers.submit(2, 3).result())\n"
    )
    done = installed.run(installed.python, "-c", script, cwd=tmp_path)
    assert done.stdout == "5\n", done.stderr


@pytest.mark.parametrize("broken", ["cli/__init__.py", "cli/main.py"])
@pytest.mark.parametrize("missing", [False, True], ids=["overwritten", "missing"])
def test_another_cli_in_the_same_place_is_one_sentence(
    own_environment: Environment, tmp_path: Path, broken: str, missing: bool
) -> None:
    """Two distributions that install `cli` overwrite each other: exit 3, and nothing of the other one runs."""
    path = own_environment.site_packages / broken
    if missing:
        path.unlink()
    else:
        path.write_text("print('the other one runs')\ndef main(): pass\n")
    done = own_environment.run(own_environment.command, "--help", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert str(path) in done.stderr and "an environment of its own" in done.stderr
    done = own_environment.run(own_environment.python, "-m", "compass_es", "runs", "--json", cwd=tmp_path)
    assert done.returncode == 3 and json.loads(done.stdout)["error"]["kind"] == "unreadable"


def test_a_dependency_that_is_missing_is_one_sentence(own_environment: Environment, tmp_path: Path) -> None:
    (own_environment.site_packages / "dependencies.pth").unlink()
    done = own_environment.run(own_environment.command, "--help", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr == "compass-es: compass-es needs the module click, which is not installed\n"


def test_importing_the_public_module_changes_nothing(installed: Environment, tmp_path: Path) -> None:
    """The search path stays as it was, and nothing of ours or of others is loaded before a name is used."""
    code = (
        "import sys; before = list(sys.path); import compass_es; assert sys.path == before\n"
        "print(*({'eventstore', 'projections', 'cli', 'msgspec', 'click', 'duckdb'} & set(sys.modules)))\n"
    )
    assert installed.run(installed.python, "-c", code, cwd=tmp_path).stdout == "\n"


def test_every_public_name_is_there_and_documented() -> None:
    """`__all__` and the imports that type checkers see are the same names; each has a docstring."""
    tree = ast.parse(Path(compass_es.__file__).read_text())
    shown = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.If)
        for statement in node.body
        if isinstance(statement, ast.ImportFrom) and statement.module != "importlib.machinery"
        for alias in statement.names
    }
    assert {*compass_es.__all__} == shown | {"main"}
    assert [name for name in compass_es.__all__ if not (getattr(compass_es, name).__doc__ or "").strip()] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        compass_es.nothing  # noqa: B018
    assert {*compass_es.__all__} <= {*dir(compass_es)}
