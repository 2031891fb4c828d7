"""Artifacts of an attempt: declared outputs copied in, with a manifest (schema 1) that AgentCompass 1.0.1 reads.

    specs = read_specs(["/logs/artifacts", {"source": "/app/out.txt", "exclude": ["*.tmp"]}])
    manifest = collect(run_dir, attempt_dir, specs, sandbox_root(root), limits)
    validate_manifest(manifest, run_dir, limits)       # fingerprints against the stored files
    manifest = materialise(manifest, source_run, target_run, "details/running/…/attempt-1/artifacts", limits)

An entry is `collected` (with kind, sha256, size_bytes, file_count), `missing` (the source is not there), `excluded`
(every byte of it was excluded), `failed`, or `not_collected` (an earlier entry failed). A collected entry appears
under its destination whole or not at all: it is copied beside, checked, made durable and then renamed.
"""

import contextlib
import fnmatch
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct

from eventstore.errors import CompassError, DamagedError, InputError, OutputError, RefusedError, UsageError
from eventstore.format.events import Json
from eventstore.run.names import ARTIFACTS_NAME, DETAILS_NAME, TASK_STATES
from eventstore.stream.filesystem import REAL

from .fingerprints import ArtifactLimits, Budget, Fingerprint, fingerprint, fingerprint_all
from .safe_path import inside, is_real_folder, relative_path, sandbox_path
from .tree_copy import ContentIndex, TreeCopy, remove_tree

MANIFEST_SCHEMA = 1
COLLECTED, MISSING, EXCLUDED, FAILED, NOT_COLLECTED = "collected", "missing", "excluded", "failed", "not_collected"
KEPT_STATUSES = (COLLECTED, MISSING, EXCLUDED)
_SPEC_MEMBERS = ("source", "destination", "exclude", "service")

Locate = Callable[[str], Path]
Journal = Callable[[Json], None]


class ArtifactSpec(Struct, frozen=True):
    """A declared output: an absolute path in the sandbox, where it is stored below `artifacts/`, what is left out."""

    source: str
    destination: str
    exclude: list[str] = []
    service: str | None = None


class CollectionError(RefusedError):
    """Collecting stopped. `manifest` tells what was kept (`complete` is False), and what failed."""

    def __init__(self, error: CompassError, manifest: Json) -> None:
        super().__init__(f"artifacts are incomplete: {error.message}", error.path)
        self.manifest = manifest


def read_specs(values: Any) -> list[ArtifactSpec]:
    """Declarations: paths, or objects with source, destination, exclude and service.

    Raises UsageError or RefusedError for one that can't be honoured, and where two destinations overlap.
    """
    if not isinstance(values, list | tuple):
        raise UsageError("artifacts must be a list of declarations")
    specs = [_read_spec(value) for value in values]
    taken: set[PurePosixPath] = set()
    above: set[PurePosixPath] = set()
    for spec in specs:
        target = PurePosixPath(spec.destination)
        if target in taken or target in above or not taken.isdisjoint(target.parents):
            raise RefusedError(f"artifact destinations overlap: {spec.destination[:200]!r}")
        taken.add(target)
        above.update(target.parents)
    return specs


def _read_spec(value: Any) -> ArtifactSpec:
    members: Json = {"source": value} if isinstance(value, str) else value
    if not isinstance(members, dict) or set(members) - set(_SPEC_MEMBERS):
        raise UsageError(f"an artifact declaration has {', '.join(_SPEC_MEMBERS)}, not {value!r:.200}")
    source = sandbox_path(members.get("source"))
    destination, exclude = members.get("destination"), members.get("exclude", [])
    if not isinstance(exclude, list | tuple) or not all(map(_is_pattern, exclude)):
        raise UsageError(f"artifact {source!r:.200}: exclude must be a list of patterns")
    if members.get("service") not in (None, "main"):
        raise UsageError(f"artifact {source!r:.200}: only the main service can be collected from")
    stored = relative_path(source.lstrip("/") if destination is None else destination, "artifact destination")
    return ArtifactSpec(source, str(stored), list(exclude), members.get("service"))


def _is_pattern(value: object) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def manifest_specs(manifest: Json) -> list[ArtifactSpec]:
    """Return the declarations that a manifest holds."""
    return read_specs([{name: entry[name] for name in _SPEC_MEMBERS if name in entry} for entry in _entries(manifest)])


def sandbox_root(root: Path) -> Locate:
    """Where sandbox paths stand when `root` is the sandbox's file system here. A path through a link is refused."""

    def locate(source: str) -> Path:
        parent = PurePosixPath(source).parent
        folder = root if len(parent.parts) < 2 else inside(root, str(parent).lstrip("/"), "artifact source")
        return folder / PurePosixPath(source).name

    return locate


def collect(
    run_dir: Path,
    attempt_dir: Path,
    specs: Sequence[ArtifactSpec],
    locate: Locate,
    limits: ArtifactLimits | None = None,
    *,
    index: ContentIndex | None = None,
    journal: Journal | None = None,
    durable: bool = True,
) -> Json:
    """Copy declared outputs into `attempt_dir/artifacts` and return the manifest.

    `journal` is called with the manifest before the first and after every entry. Raises CollectionError, with the
    manifest, as soon as one entry fails; entries that were collected stay.
    """
    folder = attempt_dir / ARTIFACTS_NAME
    _make_folder(folder)
    manifest: Json = {
        "schema_version": MANIFEST_SCHEMA,
        "directory": folder.relative_to(run_dir).as_posix(),
        "complete": False,
        "entries": [_pending(spec) for spec in specs],
    }
    budget = Budget(limits or ArtifactLimits())
    tell = journal or (lambda manifest: None)
    tell(manifest)
    for spec, entry in zip(specs, manifest["entries"], strict=True):
        entry["status"] = "collecting"
        try:
            entry.update(_collect_one(spec, locate, folder, budget, index, durable))
            tell(manifest)
        except BaseException as error:
            _give_up(manifest, entry, error)
            with contextlib.suppress(CompassError):  # the reason to stop counts, not the note about it
                tell(manifest)
            if not isinstance(error, CompassError):
                raise
            raise CollectionError(error, manifest) from error
    manifest["complete"] = True
    tell(manifest)
    return manifest


def _pending(spec: ArtifactSpec) -> Json:
    return {name: getattr(spec, name) for name in _SPEC_MEMBERS} | {"status": "pending"}


def _give_up(manifest: Json, entry: Json, error: BaseException) -> None:
    # Only the type: texts of errors from a sandbox can hold credentials.
    entry.update(status=FAILED, error_type=type(error).__name__)
    manifest.update(error_type=type(error).__name__, failed_operation="collect")
    for other in manifest["entries"]:
        if other["status"] == "pending":
            other["status"] = NOT_COLLECTED


def _collect_one(
    spec: ArtifactSpec, locate: Locate, folder: Path, budget: Budget, index: ContentIndex | None, durable: bool
) -> Json:
    source = locate(spec.source)
    try:
        source.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return {"status": MISSING}
    except OSError as error:
        raise InputError(f"{source}: can't be read: {error.strerror}", source) from None
    if source.is_symlink():
        raise RefusedError(f"{source}: an artifact must not be a symbolic link itself", source)
    excluded = exclusion(spec.exclude)
    if excluded(source.name):
        return {"status": EXCLUDED}
    with _staging(folder.parent, ".download-") as staging:  # beside artifacts/, where recovery finds what a crash left
        staged = staging / PurePosixPath(spec.destination).name
        place, copying = None, TreeCopy(budget, excluded=excluded, index=index, durable=durable)
        try:
            copying.copy(source, staged)
            details = fingerprint(staged, Budget(budget.limits))
            place = _publish(staged, folder, spec.destination, durable)
        finally:
            if index is not None:
                index.moved(copying.added, staged, place)
    kind = "directory" if is_real_folder(folder / spec.destination) else "file"
    return {"status": COLLECTED, "kind": kind, **_as_members(details)}


def exclusion(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Whether a path (from the artifact's own name on) is left out, as GNU tar's `--exclude` has it: a shell pattern,
    whose `*` takes slashes too, for the path or any tail of it that begins after a slash."""

    def excluded(path: str) -> bool:
        parts = path.split("/")
        tails = ["/".join(parts[first:]) for first in range(len(parts))]
        return any(fnmatch.fnmatchcase(tail, pattern) for pattern in patterns for tail in tails)

    return excluded if patterns else lambda path: False


def _publish(staged: Path, folder: Path, destination: str, durable: bool) -> Path:
    target = inside(folder, destination, "artifact destination")
    _make_folder(target.parent)
    if os.path.lexists(target):
        raise RefusedError(f"{target}: is there already", target)
    try:
        mode = staged.stat().st_mode
        if is_real_folder(staged):
            os.chmod(staged, mode | 0o700)  # renaming a folder needs the right to write to it
        os.rename(staged, target)
        os.chmod(target, mode & 0o777)
    except OSError as error:
        raise OutputError(f"{target}: can't be written: {error.strerror}", target) from None
    if durable:
        REAL.sync_folder(target.parent)
    return target


@contextlib.contextmanager
def _staging(folder: Path, prefix: str) -> Iterator[Path]:
    staging = folder / f"{prefix}{secrets.token_hex(8)}"
    _make_folder(staging)
    try:
        yield staging
    finally:
        remove_tree(staging)


def _make_folder(folder: Path) -> None:
    if folder.is_symlink():
        raise RefusedError(f"{folder}: is a symbolic link", folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: can't be made: {error.strerror}", folder) from None


def _as_members(details: Fingerprint) -> Json:
    return {"sha256": details.sha256, "size_bytes": details.size_bytes, "file_count": details.file_count}


def _entries(manifest: Json) -> list[Json]:
    entries = manifest.get("entries")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DamagedError("the artifact manifest has no list of entries")
    return entries


class StoredArtifact(Struct, frozen=True):
    """A collected artifact as it stands on disk, with its entry in the manifest."""

    path: Path
    source: str
    destination: str
    fingerprint: Fingerprint


def validate_manifest(
    manifest: Any, run_dir: Path, limits: ArtifactLimits | None = None, *, workers: int = 0
) -> list[StoredArtifact]:
    """Check a manifest against the files: schema, completeness, containment, sizes, checksums, limits over all entries.

    Returns the collected artifacts. Raises DamagedError or RefusedError, in words, for the first thing that is wrong.
    """
    if not isinstance(manifest, dict) or manifest.get("schema_version") != MANIFEST_SCHEMA:
        raise DamagedError("the artifact manifest has no schema that is known here")
    if manifest.get("complete") is False:
        raise DamagedError("the artifact manifest says that collecting was not completed")
    folder = inside(run_dir, manifest.get("directory"), "artifact directory")
    stored, seen = [], set()
    for spec, entry in zip(manifest_specs(manifest), _entries(manifest), strict=True):
        if (spec.source, spec.destination) in seen:
            raise DamagedError(f"artifact {spec.source!r:.200} stands twice in its manifest")
        seen.add((spec.source, spec.destination))
        status = entry.get("status")
        if status not in KEPT_STATUSES:
            raise DamagedError(f"artifact {spec.source!r:.200} was not collected (status {status!r:.80})")
        if status == COLLECTED:
            path = inside(folder, spec.destination, "artifact destination")
            stored.append(StoredArtifact(path, spec.source, spec.destination, _recorded(entry, spec)))
    _compare(stored, Budget(limits or ArtifactLimits()), workers)
    return stored


def _recorded(entry: Json, spec: ArtifactSpec) -> Fingerprint:
    sha256, size, count = entry.get("sha256"), entry.get("size_bytes"), entry.get("file_count")
    if not isinstance(sha256, str) or type(size) is not int or type(count) is not int:
        raise DamagedError(f"artifact {spec.source!r:.200} has no fingerprint in its manifest")
    return Fingerprint(sha256, size, count)


def _compare(stored: list[StoredArtifact], budget: Budget, workers: int) -> None:
    for artifact in stored:
        if not os.path.lexists(artifact.path):
            raise DamagedError(f"{artifact.path}: the artifact is gone", artifact.path)
    found = fingerprint_all([artifact.path for artifact in stored], budget, workers)
    for artifact, details in zip(stored, found, strict=True):
        if details != artifact.fingerprint:
            raise DamagedError(
                f"{artifact.path}: the artifact is not what was collected: {details.size_bytes} bytes in "
                f"{details.file_count} entries, and {artifact.fingerprint.size_bytes} in "
                f"{artifact.fingerprint.file_count} were recorded, or other bytes",
                artifact.path,
            )


def materialise(
    manifest: Json,
    source_run: Path,
    target_run: Path,
    target_relative: str,
    limits: ArtifactLimits | None = None,
    *,
    link: bool = True,
    durable: bool = True,
) -> Json:
    """Bring an attempt's artifacts into another run, checked before and after; returns the manifest for there.

    `target_relative` is the `artifacts` folder below the target run. Files are shared where that is possible (reflink,
    else hard link) unless `link` is False. A target that is there already must hold exactly these artifacts.
    """
    source = _attempt_folder(manifest, source_run)
    moved = {**manifest, "directory": target_relative}
    target = _attempt_folder(moved, target_run)
    stored = validate_manifest(manifest, source_run, limits)
    if os.path.lexists(target) and any(target.iterdir()):
        validate_manifest(moved, target_run, limits)
        return moved
    if not stored:
        _make_folder(target)
        return moved
    _make_folder(target.parent)
    budget = Budget(limits or ArtifactLimits())
    with _staging(target.parent, ".reuse-") as staging:
        payload = staging / "payload"
        _make_folder(payload)
        for artifact in stored:
            place = payload / artifact.destination
            _make_folder(place.parent)
            TreeCopy(budget, link=link, durable=durable).copy(inside(source, artifact.destination), place)
        staged = {**manifest, "directory": payload.relative_to(target_run).as_posix()}
        validate_manifest(staged, target_run, limits)
        try:
            os.rename(payload, target)  # fails on a folder that somebody filled meanwhile
        except OSError as error:
            raise OutputError(f"{target}: can't be written: {error.strerror}", target) from None
    if durable:
        REAL.sync_folder(target.parent)
    return moved


def _attempt_folder(manifest: Json, run_dir: Path) -> Path:
    parts = relative_path(manifest.get("directory"), "artifact directory").parts
    in_details = parts[0] == DETAILS_NAME and parts[-1] == ARTIFACTS_NAME
    by_state = len(parts) == 5 and in_details and parts[1] in TASK_STATES
    if not (by_state or (len(parts) == 4 and in_details) or (len(parts) == 2 and parts[0] == ARTIFACTS_NAME)):
        raise RefusedError(f"artifact directory {'/'.join(parts)!r:.200} is not that of an attempt")
    return inside(run_dir, manifest["directory"], "artifact directory")
