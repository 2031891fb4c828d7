"""Documents against the code: names, paths, links and commands that are there, and the rules of English."""

import ast
import re
from collections import Counter
from pathlib import Path

import click
import pytest

import compass_es
from cli.main import COMMANDS, commands
from tests.tools.english import docstring_breaches, first_line_problem, prose_breaches, words_not_used

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [*PAGES, *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
STRICT = ("api.md", "campaign.md", "cli.md", "glossary.md", "index.md", "json.md", "durability.md", "README.md")
"""Documents that follow the rules of English altogether."""
OLDER: dict[str, int] = {
    "cli": 39,
    "documents": 73,
    "eventstore/format": 32,
    "eventstore/history": 83,
    "eventstore/operations": 139,
    "eventstore/recording": 32,
    "eventstore/redaction": 47,
    "eventstore/results": 59,
    "eventstore/run": 18,
    "eventstore/stream": 38,
    "projections": 30,
    "projections/diagnose": 16,
    "projections/snapshots": 30,
    "projections/timeline": 44,
    "projections/verify": 50,
}
"""Area → places in docstrings and documents that are older than the rules. These numbers only go down."""
IMPORTABLE = {"compass_es", "eventstore.history", "projections", "agentcompass"}
"""What examples in documents may import, beside what isn't ours."""


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_the_reference_lists_exactly_the_public_names() -> None:
    """docs/api.md is made from docstrings; a name without an entry there is not documented."""
    entries = re.findall(r"^::: compass_es\.(\w+)$", read(ROOT / "docs/api.md"), flags=re.MULTILINE)
    assert sorted(entries) == sorted(compass_es.__all__)


def test_everything_public_has_a_docstring() -> None:
    """Names, and the methods and properties of classes."""
    bare = [
        f"{name}.{member}"
        for name in compass_es.__all__
        for member, value in vars(getattr(compass_es, name)).items()
        if isinstance(getattr(compass_es, name), type) and not member.startswith("_")
        if callable(value) or isinstance(value, property | classmethod | staticmethod)
        if not (getattr(value, "__doc__", "") or "").strip()
    ]
    assert bare == []


def test_the_site_has_every_page() -> None:
    navigation = re.findall(r": ([\w-]+\.md)$", read(ROOT / "mkdocs.yml"), flags=re.MULTILINE)
    assert sorted(navigation) == [path.name for path in PAGES]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_paths_lead_somewhere(document: Path) -> None:
    """A link is relative and its file is there; so is each file of ours that is named in backticks."""
    text = read(document)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    broken = [link for link in links if not (document.parent / link.partition("#")[0]).exists()]
    named = re.findall(r"`((?:eventstore|projections|cli|tests|docs|benchmarks)/[\w./-]*[\w/])`", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    modules = re.findall(r"python -m ((?:eventstore|tests|benchmarks)[\w.]+)", text)
    gone = [name for name in modules if not (ROOT / (name.replace(".", "/") + ".py")).exists()]
    assert broken + missing + gone == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_import_what_is_public(document: Path) -> None:
    """Each import in a code block works, and asks for a public name."""
    for line in re.findall(r"^(?:    )?((?:from [\w.]+ )?import [\w., ]+)", read(document), flags=re.MULTILINE):
        (statement,) = ast.parse(line.strip().rstrip(",")).body
        if isinstance(statement, ast.ImportFrom):
            module = statement.module or ""
            assert module in IMPORTABLE or module.partition(".")[0] not in ("eventstore", "projections", "cli"), line
            if module == "compass_es":
                assert {alias.name for alias in statement.names} <= {*compass_es.__all__}, line
    attributes = re.findall(r"\bcompass_es\.(\w+)", read(document))
    assert {*attributes} - {*compass_es.__all__} - {"py"} == set()


def test_every_command_is_in_the_documents() -> None:
    """docs/cli.md has a table of the commands; README names the ones to begin with."""
    rows = re.findall(r"^\| `(\w+)` \|", read(ROOT / "docs/cli.md"), flags=re.MULTILINE)
    assert [row for row in rows if row in COMMANDS] == list(COMMANDS)
    named = set(re.findall(r"^    compass-es +(\w+)", read(ROOT / "README.md"), flags=re.MULTILINE))
    assert named and named <= {*COMMANDS}


def test_the_change_log_has_a_section_for_the_version() -> None:
    """The version of pyproject.toml has its own section, below what is not released."""
    version = re.search(r'^version = "(.+)"$', read(ROOT / "pyproject.toml"), flags=re.MULTILINE)
    sections = re.findall(r"^## \[(.+?)\]", read(ROOT / "CHANGELOG.md"), flags=re.MULTILINE)
    assert version is not None and sections[:2] == ["Unreleased", version[1]]


# -- English


def test_what_is_public_follows_the_rules_of_english() -> None:
    """First lines and words, in the docstrings of public names and their members."""
    problems = []
    for name in compass_es.__all__:
        value = getattr(compass_es, name)
        problems += english_problems(name, value.__doc__, function=not isinstance(value, type))
        for member, inner in vars(value).items() if isinstance(value, type) else ():
            if not member.startswith("_") and getattr(inner, "__doc__", None):
                is_method = isinstance(inner, classmethod | staticmethod) or type(inner).__name__ == "function"
                if is_method or isinstance(inner, property):
                    problems += english_problems(f"{name}.{member}", inner.__doc__, function=is_method)
    assert problems == []


def english_problems(name: str, text: str, *, function: bool) -> list[str]:
    """Return what is wrong with one docstring."""
    lines = text.strip()
    first = first_line_problem(lines, function=function)
    return [f"{name}: {problem}" for problem in ([first] if first else []) + [*words_not_used(lines)]]


@pytest.mark.parametrize("name", [*COMMANDS])
def test_help_follows_the_rules_of_english(name: str) -> None:
    """The text of `--help`: of the command, its options, and of commands below it."""
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    several = [command, *(command.commands.values() if isinstance(command, click.Group) else ())]
    problems = [words for words in words_not_used(COMMANDS[name])]
    for one in several:
        texts = [one.help or "", *(getattr(option, "help", None) or "" for option in one.params)]
        problems += [f"{one.name}: {problem}" for text in texts for problem in words_not_used(text)]
        if first_line_problem((one.help or "").strip(), function=True) is not None:
            problems.append(f"{one.name}: its help begins with a verb")
    assert problems == []


@pytest.mark.parametrize("name", STRICT)
def test_documents_use_no_word_that_is_not_used(name: str) -> None:
    path = ROOT / name if (ROOT / name).exists() else ROOT / "docs" / name
    assert [str(breach) for breach in prose_breaches(path, name)] == []


def test_no_area_has_more_places_that_break_the_rules_than_before() -> None:
    """Older places may be there; where one is mended, the number goes down."""
    counts: Counter[str] = Counter()
    shown: dict[str, list[str]] = {}
    for top in ("eventstore", "projections", "cli"):
        for path in sorted((ROOT / top).rglob("*.py")):
            area = "/".join(path.relative_to(ROOT).parts[: 2 if path.parent != ROOT / top else 1])
            for breach in docstring_breaches(path, path.relative_to(ROOT).as_posix()):
                counts[area] += 1
                shown.setdefault(area, []).append(str(breach))
    for path in DOCUMENTS:
        counts["documents"] += sum(1 for _ in prose_breaches(path, path.name))
    more = {area: count for area, count in counts.items() if count > OLDER.get(area, 0)}
    assert not more, "\n".join(
        [f"{area}: {count}" for area, count in more.items()] + [line for area in more for line in shown.get(area, [])]
    )
