"""Artifacts: fingerprints equal to AgentCompass's, and nothing half, strange or too big ever published."""

import errno
import json
import os
import random
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from eventstore.errors import CompassError, DamagedError, RefusedError, UsageError
from eventstore.results import artifacts, tree_copy
from eventstore.results.artifacts import (
    CollectionError,
    collect,
    manifest_specs,
    materialise,
    read_specs,
    sandbox_root,
    validate_manifest,
)
from eventstore.results.fingerprints import ArtifactLimits, Budget, fingerprint, fingerprint_all
from eventstore.results.tree_copy import ContentIndex, remove_tree
from tests.tools.dying import deaths
from tests.tools.trees import COUNT, make_tree

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "artifacts" / "fingerprints.json").read_text())
ATTEMPT = "details/running/t--00/attempt-1"


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    root = tmp_path / "sandbox"
    (root / "logs" / "artifacts" / "deep").mkdir(parents=True)
    (root / "logs" / "artifacts" / "a.txt").write_text("alpha" * 2000)
    (root / "logs" / "artifacts" / "deep" / "b.tmp").write_text("beta")
    (root / "logs" / "artifacts" / "link").symlink_to("a.txt")
    (root / "app").mkdir()
    (root / "app" / "out.bin").write_bytes(bytes(range(256)) * 100)
    (root / "app" / "out.bin").chmod(0o750)
    return root


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / ATTEMPT).mkdir(parents=True)
    return tmp_path / "run"


def gather(run: Path, root: Path, *specs: Any, **options: Any) -> dict[str, Any]:
    return collect(run, run / ATTEMPT, read_specs(list(specs)), sandbox_root(root), **options)


def published(run: Path) -> list[str]:
    folder = run / ATTEMPT / "artifacts"
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


# --- fingerprints


@pytest.mark.parametrize("number", range(COUNT))
def test_the_fingerprint_is_that_of_agentcompass(tmp_path: Path, number: int) -> None:
    """Odd names, modes, links to files, folders and nothing, single files: the same digest, size and count."""
    path = make_tree(tmp_path, number)
    found = fingerprint(path)
    remove_tree(path)
    assert {name: getattr(found, name) for name in found.__struct_fields__} == GOLDEN[str(number)]


def test_several_artifacts_are_fingerprinted_in_their_order(tmp_path: Path) -> None:
    """By threads or one after another, the results are the same."""
    paths = [make_tree(tmp_path, number) for number in range(12)]
    one = list(fingerprint_all(paths, Budget(ArtifactLimits()), workers=1))
    many = list(fingerprint_all(paths, Budget(ArtifactLimits()), workers=4))
    assert one == many == [fingerprint(path) for path in paths]
    for path in paths:
        remove_tree(path)


def test_a_tree_deeper_than_the_recursion_limit_is_read(tmp_path: Path) -> None:
    """Depth costs no stack."""
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)
    try:
        assert fingerprint(tmp_path / "d").file_count == 1500
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)  # Python's own removal recurses


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (ArtifactLimits(max_bytes=1000), "bytes"),
        (ArtifactLimits(max_entries=3), "entries"),
        (ArtifactLimits(timeout_seconds=-1.0), "not done"),
    ],
)
def test_beyond_a_limit_is_a_refusal(run: Path, sandbox: Path, limits: ArtifactLimits, words: str) -> None:
    """Bytes, entries, time: each told with its number, and nothing of that artifact stays."""
    with pytest.raises(CollectionError, match=words) as refusal:
        gather(run, sandbox, "/logs/artifacts", limits=limits)
    assert refusal.value.manifest["complete"] is False and published(run) == []


def test_limits_are_taken_from_a_plan() -> None:
    """{max_mb, max_files, timeout_seconds} as a plan records them; the defaults are those of the specification."""
    assert ArtifactLimits.from_plan(None) == ArtifactLimits(16 * 2**30, 100_000, 600.0)
    assert ArtifactLimits.from_plan({"max_mb": 0.5, "max_files": 7}) == ArtifactLimits(2**19, 7, 600.0)
    for odd in ({"max_mb": -1}, {"max_files": "x"}, {"timeout_seconds": float("inf")}):
        with pytest.raises(UsageError):
            ArtifactLimits.from_plan(odd)


# --- collecting


def test_collected_missing_and_excluded_are_kept_apart(run: Path, sandbox: Path) -> None:
    """Bytes and modes are the originals; what was not there and what was left out keep their meaning."""
    told: list[tuple[str, ...]] = []
    manifest = gather(
        run,
        sandbox,
        {"source": "/logs/artifacts", "exclude": ["*.tmp"]},
        {"source": "/app/out.bin", "destination": "bin/result"},
        "/nowhere/at/all",
        {"source": "/app", "destination": "left-out", "exclude": ["app"]},
        journal=lambda manifest: told.append(tuple(entry["status"] for entry in manifest["entries"])),
    )
    statuses = [entry["status"] for entry in manifest["entries"]]
    assert statuses == ["collected", "collected", "missing", "excluded"] and manifest["complete"] is True
    assert manifest["directory"] == f"{ATTEMPT}/artifacts" and manifest["schema_version"] == 1
    copied = run / ATTEMPT / "artifacts" / "bin" / "result"
    assert copied.read_bytes() == (sandbox / "app" / "out.bin").read_bytes()
    assert stat.S_IMODE(copied.stat().st_mode) == 0o750
    assert published(run) == [
        "bin",
        "bin/result",
        "logs",
        "logs/artifacts",
        "logs/artifacts/a.txt",
        "logs/artifacts/deep",
        "logs/artifacts/link",
    ]
    assert [artifact.source for artifact in validate_manifest(manifest, run)] == ["/logs/artifacts", "/app/out.bin"]
    assert told[0] == ("pending",) * 4 and told[-1] == tuple(statuses)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, chdir(path.parent):
        server.bind(path.name)  # a socket's whole path may have 107 bytes only


SPECIAL: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "socket": _socket,
    "leads out": lambda path: path.symlink_to("../../../../etc/passwd"),
    "leads out ": lambda path: path.symlink_to("/etc/passwd"),
    "in a circle": lambda path: path.symlink_to("strange"),
}


@pytest.mark.parametrize("words", SPECIAL)
def test_links_that_escape_and_special_files_are_refused(run: Path, sandbox: Path, words: str) -> None:
    """Each a clear refusal with the path; nothing half published, no leftovers, earlier entries stay."""
    SPECIAL[words](sandbox / "logs" / "artifacts" / "strange")
    with pytest.raises(CollectionError, match=words.strip()) as refusal:
        gather(run, sandbox, "/app/out.bin", "/logs/artifacts", "/later")
    manifest = refusal.value.manifest
    assert [entry["status"] for entry in manifest["entries"]] == ["collected", "failed", "not_collected"]
    assert manifest["complete"] is False and manifest["entries"][1]["error_type"]
    assert published(run) == ["app", "app/out.bin"]
    with pytest.raises(DamagedError, match="not completed"):
        validate_manifest(manifest, run)


def test_a_source_that_is_a_link_or_lies_behind_one_is_refused(run: Path, sandbox: Path) -> None:
    """Neither the artifact itself nor a folder above it may lead elsewhere."""
    (sandbox / "way").symlink_to(sandbox / "app")
    for source in ("/way", "/way/out.bin"):
        with pytest.raises(CollectionError, match="symbolic link"):
            gather(run, sandbox, source)
    assert published(run) == []


def test_a_file_that_grows_while_it_is_copied_is_refused(
    run: Path, sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is still written is no artifact: told, and nothing of it stays."""
    growing = sandbox / "app" / "out.bin"
    real = os.readv

    def readv(fd: int, buffers: Any) -> int:
        with growing.open("ab") as file:
            file.write(b"more")
        return real(fd, buffers) if growing.stat().st_size < 30_000 else 0

    monkeypatch.setattr(tree_copy.os, "readv", readv)
    with pytest.raises(CollectionError, match="changed while"):
        gather(run, sandbox, "/app/out.bin")
    assert published(run) == []


def test_a_full_disk_in_the_middle_of_an_artifact_is_told(
    run: Path, sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words say so, the manifest says what failed, nothing half published stays."""

    def write_all(self: object, fd: int, content: memoryview) -> None:
        os.write(fd, content[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("eventstore.stream.filesystem.FileSystem.write_all", write_all)
    with pytest.raises(CollectionError, match="the disk is full"):
        gather(run, sandbox, "/logs/artifacts")
    assert published(run) == []


def test_a_crash_while_collecting_publishes_whole_artifacts_or_none(run: Path, sandbox: Path) -> None:
    """At whatever point the process dies, a destination that is there has every byte."""
    whole = fingerprint(sandbox / "logs" / "artifacts")
    outcomes = set()

    def prepare() -> None:
        remove_tree(run / ATTEMPT)
        (run / ATTEMPT).mkdir()

    for _ in deaths(lambda: gather(run, sandbox, "/logs/artifacts"), prepare):
        target = run / ATTEMPT / "artifacts" / "logs" / "artifacts"
        outcomes.add(target.exists())
        assert {path.name for path in (run / ATTEMPT / "artifacts").rglob("*")} <= {
            "logs",
            "artifacts",
            "a.txt",
            "deep",
            "b.tmp",
            "link",
        }
        if target.exists():
            assert fingerprint(target) == whole
    assert outcomes == {True, False}


@pytest.mark.parametrize(
    "declared",
    [
        "relative",
        "/",
        "//x",
        "/a/../b",
        "/a\\b",
        "/a\0b",
        7,
        {"source": "/a", "destination": "../b"},
        {"source": "/a", "destination": "/b"},
        {"source": "/a", "destination": ""},
        {"source": "/a", "exclude": [""]},
        {"source": "/a", "exclude": "x"},
        {"source": "/a", "service": "db"},
        {"source": "/a", "more": 1},
    ],
)
def test_a_declaration_that_cannot_be_honoured_is_refused(declared: Any) -> None:
    """Paths that lead out, unknown members, other services."""
    with pytest.raises(CompassError):
        read_specs([declared])


def test_many_declarations_are_read_in_a_moment() -> None:
    """A manifest with tens of thousands of entries is no reason to wait."""
    assert len(read_specs([f"/a/{number}" for number in range(30_000)])) == 30_000


def test_overlapping_destinations_are_refused() -> None:
    """One artifact never lands inside another."""
    for other in ("/a", {"source": "/x", "destination": "a/b"}, {"source": "/x", "destination": "a"}):
        with pytest.raises(RefusedError, match="overlap"):
            read_specs(["/a", other])


# --- sharing bytes inside a run


def test_equal_files_of_a_run_share_their_bytes(run: Path, sandbox: Path) -> None:
    """A second artifact with the same content costs no space; its fingerprint is its own all the same."""
    index = ContentIndex()
    first = gather(run, sandbox, "/app/out.bin", index=index)
    second = collect(
        run, run / "details/running/t--00/attempt-2", read_specs(["/app/out.bin"]), sandbox_root(sandbox), index=index
    )
    assert index.shared_bytes == 25_600
    validate_manifest(first, run)
    validate_manifest(second, run)


def test_files_are_shared_only_where_it_is_safe(run: Path, sandbox: Path) -> None:
    """Another mode, or a file that was changed since: no sharing, and what was collected stays as it was."""
    index = ContentIndex()
    gather(run, sandbox, "/app/out.bin", index=index)
    stored = run / ATTEMPT / "artifacts" / "app" / "out.bin"
    (sandbox / "app" / "out.bin").chmod(0o600)
    gather(run, sandbox, {"source": "/app/out.bin", "destination": "other-mode"}, index=index)
    (sandbox / "app" / "out.bin").chmod(0o750)
    stored.write_bytes(b"x" + stored.read_bytes()[1:])
    manifest = gather(run, sandbox, {"source": "/app/out.bin", "destination": "changed"}, index=index)
    assert index.shared_bytes == 0
    assert (run / ATTEMPT / "artifacts" / "changed").read_bytes() == (sandbox / "app" / "out.bin").read_bytes()
    validate_manifest(manifest, run)


# --- validating and bringing over


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[random.Random(1).randrange(len(content))] ^= 1
    path.chmod(0o600)
    mode = 0o750
    path.write_bytes(content)
    path.chmod(mode)


DAMAGES: dict[str, Callable[[Path, dict[str, Any]], object]] = {
    "not what was collected": lambda run, manifest: _flip(run / ATTEMPT / "artifacts" / "app" / "out.bin"),
    "not what was collected ": lambda run, manifest: (run / ATTEMPT / "artifacts/app/out.bin").chmod(0o700),
    "is gone": lambda run, manifest: (run / ATTEMPT / "artifacts" / "app" / "out.bin").unlink(),
    "no schema": lambda run, manifest: manifest.update(schema_version=2),
    "not completed": lambda run, manifest: manifest.update(complete=False),
    "leads out": lambda run, manifest: manifest.update(directory="../elsewhere"),
    "leads out ": lambda run, manifest: manifest["entries"][0].update(destination="/etc/passwd"),
    "overlap": lambda run, manifest: manifest["entries"].append(manifest["entries"][0]),
    "not collected": lambda run, manifest: manifest["entries"][0].update(status="failed"),
    "no list": lambda run, manifest: manifest.update(entries=7),
    "no fingerprint": lambda run, manifest: manifest["entries"][0].pop("sha256"),
}


@pytest.mark.parametrize("words", DAMAGES)
def test_a_damaged_artifact_or_manifest_is_told(run: Path, sandbox: Path, words: str) -> None:
    """A flipped byte, a changed mode, a missing file, a manifest that leads elsewhere: each has its words."""
    manifest = gather(run, sandbox, "/app/out.bin")
    validate_manifest(manifest, run)
    DAMAGES[words](run, manifest)
    with pytest.raises(CompassError, match=words.strip()):
        validate_manifest(manifest, run)


@pytest.mark.parametrize("link", [True, False], ids=["shared", "copied"])
def test_artifacts_brought_into_another_run_stand_alone(tmp_path: Path, run: Path, sandbox: Path, link: bool) -> None:
    """The source may be deleted afterwards; bringing them over twice changes nothing."""
    manifest = gather(run, sandbox, "/logs/artifacts", "/app/out.bin", "/nowhere")
    target = tmp_path / "target"
    target.mkdir()
    there = "details/running/t--00/attempt-1/artifacts"
    moved = materialise(manifest, run, target, there, link=link)
    assert moved["directory"] == there and manifest_specs(moved) == manifest_specs(manifest)
    assert materialise(manifest, run, target, there, link=link) == moved
    shutil.rmtree(run)
    assert len(validate_manifest(moved, target)) == 2
    assert [path.name for path in (target / ATTEMPT).iterdir()] == ["artifacts"]


def test_artifacts_are_not_brought_over_others(tmp_path: Path, run: Path, sandbox: Path) -> None:
    """A target that holds something else is left as it is."""
    manifest = gather(run, sandbox, "/app/out.bin")
    target = tmp_path / "target"
    other = target / ATTEMPT / "artifacts"
    other.mkdir(parents=True)
    (other / "note.txt").write_text("mine")
    with pytest.raises(DamagedError):
        materialise(manifest, run, target, f"{ATTEMPT}/artifacts")
    assert [path.name for path in other.iterdir()] == ["note.txt"]
    for odd in ("../x", "elsewhere", "details/other/t/attempt-1/artifacts"):
        with pytest.raises(RefusedError):
            materialise(manifest, run, target, odd)


def test_an_exclusion_means_what_tar_means() -> None:
    """A shell pattern for the path or any tail of it; a star takes slashes, too."""
    excluded = artifacts.exclusion(["*.log", "cache", "a/b*"])
    assert all(map(excluded, ["x/y.log", "x/cache", "cache", "root/a/bc", "root/a/b/c.d"]))
    assert not any(map(excluded, ["x/y.log2", "cached", "root/ab", "a.b"]))
