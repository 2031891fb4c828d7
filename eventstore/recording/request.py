"""The typed request of a run: what was asked for, checked before a directory is made.

Its shape is that of the specification ("request Structure"). Parameters of components are open objects, and members
that AgentCompass adds to a section are kept. Settings of the process (results folder, whole-request timeout, log
levels, provider limits) are not part of a request, and are refused.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from msgspec import Struct, field
from msgspec.structs import asdict, force_setattr

from eventstore.errors import UsageError
from eventstore.format import codec
from eventstore.format.events import Json
from eventstore.redaction.redactor import compact_parameters, redact, redact_keys

NETWORK_MODES = ("public", "no-network", "allowlist", "denylist")
PROCESS_SETTINGS = frozenset(
    {
        "results_dir",
        "data_dir",
        "timeout_seconds",
        "cleanup_grace_seconds",
        "provider_limits",
        "env_open_qps",
        "log_level",
        "file_log_level",
        "log_file",
        "progress",
        "auto_install_dependencies",
    }
)
"""Names that configure the process and never stand in a request's `execution`, `runtime` or `output`."""

_PERSISTED_EXECUTION = frozenset(
    {
        "attempts",
        "run_timeout_seconds",
        "run_timer_compensation_seconds",
        "evaluation_timeout_seconds",
        "timeout_multiplier",
        "run_timeout_multiplier",
        "evaluation_timeout_multiplier",
        "runresult_collect_timeout_seconds",
        "artifact_collect_timeout_seconds",
        "artifact_limits",
        "save_artifacts",
        "artifacts",
        "artifact_collect",
    }
)


class Section(Struct, frozen=True, kw_only=True):
    """A part of a request. `extra` holds members that the specification doesn't name; they are stored as well."""

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raises UsageError, naming the field, for a value that has no meaning; brings the others to one spelling."""

    def members(self) -> Json:
        """Return the section as a JSON object, nothing left out."""
        fields = {name: _plain(value) for name, value in asdict(self).items()}
        extra = fields.pop("extra", None) or {}
        return {**extra, **fields}


def _plain(value: Any) -> Any:
    return value.members() if isinstance(value, Section) else value


def _set(section: Section, name: str, value: Any) -> None:
    force_setattr(section, name, value)


class _Component(Section, frozen=True, kw_only=True):
    """A component: its id, and parameters that depend on it."""

    id: str
    params: Json = {}
    extra: Json = {}

    def check(self) -> None:
        _set(self, "id", _component_id(self.id, f"{self.name}.id"))
        _set(self, "params", _object(self.params, f"{self.name}.params"))


class Benchmark(_Component, frozen=True, kw_only=True):
    """The benchmark, with the parameters after configuration and request are merged."""

    name: ClassVar[str] = "benchmark"


class Harness(_Component, frozen=True, kw_only=True):
    """The harness, likewise."""

    name: ClassVar[str] = "harness"


class Model(_Component, frozen=True, kw_only=True):
    """The model: `base_url` may be empty; `api_key` is masked wherever it is written; protocol "" means automatic."""

    name: ClassVar[str] = "model"
    base_url: str = ""
    api_key: str = ""
    api_protocol: str | list[str] | None = ""

    def check(self) -> None:
        super().check()
        _set(self, "base_url", _text(self.base_url, "model.base_url"))
        _set(self, "api_key", _text(self.api_key, "model.api_key"))
        _set(self, "api_protocol", _protocol(self.api_protocol))


class NetworkPolicy(Section, frozen=True, kw_only=True):
    """Which hosts may be reached: a mode, and the hosts that an allow-list names."""

    name: ClassVar[str] = "network_policy"
    network_mode: str = "public"
    allowed_hosts: list[str] = []
    extra: Json = {}

    def check(self) -> None:
        mode = _text(self.network_mode, "network_mode").lower()
        if mode not in NETWORK_MODES:
            raise UsageError(f"network_mode is one of {', '.join(NETWORK_MODES)}, not {self.network_mode!r}")
        _set(self, "network_mode", mode)
        hosts = _texts(self.allowed_hosts, "allowed_hosts")
        if bool(hosts) != (mode == "allowlist"):
            raise UsageError("allowed_hosts and network_mode 'allowlist' go together")
        _set(self, "allowed_hosts", hosts)


class Environment(_Component, frozen=True, kw_only=True):
    """The environment. The policy for preparing it defaults to public; those for running and scoring are optional."""

    name: ClassVar[str] = "environment"
    network_policy: NetworkPolicy | None = None
    run_network_policy: NetworkPolicy | None = None
    verifier_network_policy: NetworkPolicy | None = None

    def check(self) -> None:
        super().check()
        for name in ("network_policy", "run_network_policy", "verifier_network_policy"):
            _set(self, name, _policy(getattr(self, name), f"environment.{name}"))
        if self.network_policy is None and "baseline_network_policy" not in self.extra:
            _set(self, "network_policy", NetworkPolicy())


class Attempts(Section, frozen=True, kw_only=True):
    """How often each task is tried, and how its attempts become one value (`avg`, `pass`, …)."""

    name: ClassVar[str] = "attempts"
    k: int = 1
    strategy: str = "avg"

    def check(self) -> None:
        _set(self, "k", _count(self.k, "execution.attempts.k", 1))
        _set(self, "strategy", _component_id(self.strategy, "execution.attempts.strategy").lower())


class Execution(Section, frozen=True, kw_only=True):
    """Controls of one run. `retry_pattern_list` None or [] retries only FATAL."""

    name: ClassVar[str] = "execution"
    task_concurrency: int = 32
    attempts: Attempts = field(default_factory=Attempts)
    enabled_recipes: list[str] = []
    keep_environment: bool = False
    enable_analysis: bool = True
    analysis_params: Json = {}
    max_retries: int = 0
    retry_pattern_list: list[str] | None = None
    extra: Json = {}

    def check(self) -> None:
        _refuse_process_settings(self.extra, self.name)
        _set(self, "task_concurrency", _count(self.task_concurrency, "execution.task_concurrency", 1))
        _set(self, "max_retries", _count(self.max_retries, "execution.max_retries", 0))
        _set(self, "attempts", _section(Attempts, self.attempts, "execution.attempts"))
        _set(self, "enabled_recipes", _texts(self.enabled_recipes, "execution.enabled_recipes"))
        _set(self, "analysis_params", _object(self.analysis_params, "execution.analysis_params"))
        for name in ("keep_environment", "enable_analysis"):
            _flag(getattr(self, name), f"execution.{name}")
        if self.retry_pattern_list is not None:
            _set(self, "retry_pattern_list", _patterns(self.retry_pattern_list))


class Runtime(Section, frozen=True, kw_only=True):
    """Reuse and resumption. Naming a run to reuse asks for reuse; `checkpoint_resume` holds unless switched off."""

    name: ClassVar[str] = "runtime"
    reuse: bool | None = None
    reuse_run_id: str | None = None
    checkpoint_resume: bool | None = None
    extra: Json = {}

    def check(self) -> None:
        _refuse_process_settings(self.extra, self.name)
        source = _text(self.reuse_run_id, "runtime.reuse_run_id")
        reuse = _flag(self.reuse, "runtime.reuse", optional=True)
        resume = _flag(self.checkpoint_resume, "runtime.checkpoint_resume", optional=True)
        _set(self, "reuse_run_id", source or None)
        _set(self, "reuse", bool(source) or bool(reuse))
        _set(self, "checkpoint_resume", True if resume is None else resume)


class Output(Section, frozen=True, kw_only=True):
    """Where results go below the result root: an optional namespace, and the directory's id."""

    name: ClassVar[str] = "output"
    run_name: str = ""
    run_id: str = ""
    extra: Json = {}

    def check(self) -> None:
        _refuse_process_settings(self.extra, self.name)
        _set(self, "run_name", _text(self.run_name, "output.run_name"))
        _set(self, "run_id", _text(self.run_id, "output.run_id"))


class Metadata(Section, frozen=True, kw_only=True):
    """What the request was built from. Several config paths are stored as a JSON array in a string."""

    name: ClassVar[str] = "metadata"
    config_path: str | Sequence[str] | None = None
    recipe_dirs: list[str] | None = None
    extra: Json = {}

    def check(self) -> None:
        path = self.config_path
        if path is not None and not isinstance(path, str) and not hasattr(path, "__fspath__"):
            paths = _texts(path, "metadata.config_path")
            path = paths[0] if len(paths) == 1 else codec.dump_compact(paths).decode() if paths else None
        _set(self, "config_path", None if path is None else _text(str(path), "metadata.config_path") or None)
        if self.recipe_dirs is not None:
            _set(self, "recipe_dirs", _texts(self.recipe_dirs, "metadata.recipe_dirs"))


class Request(Struct, frozen=True, kw_only=True):
    """One evaluation request, merged by configuration precedence; per-task recipes are not applied yet."""

    model: Model
    benchmark: Benchmark
    harness: Harness
    environment: Environment
    execution: Execution = field(default_factory=Execution)
    runtime: Runtime = field(default_factory=Runtime)
    output: Output = field(default_factory=Output)
    metadata: Metadata = field(default_factory=Metadata)

    def __post_init__(self) -> None:
        for name, kind in _SECTIONS.items():
            force_setattr(self, name, _section(kind, getattr(self, name), name))

    @classmethod
    def from_members(cls, members: Mapping[str, Any]) -> "Request":
        """Return the request in a JSON object. Raises UsageError, naming the field, where a check fails."""
        if not isinstance(members, Mapping):
            raise UsageError(f"a request is an object, not a {type(members).__name__}")
        unknown = sorted(str(name) for name in members if name not in _SECTIONS)
        if unknown:
            raise UsageError(f"a request has no section {', '.join(unknown)}; it has {', '.join(_SECTIONS)}")
        missing = [name for name in ("model", "benchmark", "harness", "environment") if name not in members]
        if missing:
            raise UsageError(f"the request lacks {', '.join(missing)}")
        sections: dict[str, Any] = {n: _section(kind, members.get(n, {}), n) for n, kind in _SECTIONS.items()}
        return cls(**sections)

    def with_run_id(self, run_id: str) -> "Request":
        """Return the same request under the directory id that is finally used."""
        sections = {name: getattr(self, name) for name in _SECTIONS}
        sections["output"] = Output(run_name=self.output.run_name, run_id=run_id, extra=self.output.extra)
        return Request(**sections)

    def record(self, secrets: Sequence[str] = ()) -> Json:
        """Return `run_info.json.request`: nulls and empty members dropped, secrets masked."""
        members = {name: getattr(self, name).members() for name in _SECTIONS}
        masked: Json = redact(redact_keys(compact_parameters(members)), secrets)
        return masked

    def params_record(self, secrets: Sequence[str] = ()) -> Json:
        """Return `params.json`: the subset that summaries need, unset fields left out."""
        execution = {name: v for name, v in self.execution.members().items() if name in _PERSISTED_EXECUTION}
        model = self.model.members()
        parts = {
            "benchmark": {"id": self.benchmark.id, "params": self.benchmark.params},
            "model": {name: model[name] for name in ("id", "params", "base_url", "api_key", "api_protocol")},
            "execution": execution,
            "output": {"run_name": self.output.run_name, "run_id": self.output.run_id},
        }
        compact = {
            name: {key: value for key, value in part.items() if value not in ({}, [], None, "")}
            for name, part in compact_parameters(parts).items()
        }
        masked: Json = redact({name: part for name, part in compact.items() if part}, secrets)
        return masked


_SECTIONS: dict[str, type[Section]] = {
    kind.name: kind for kind in (Model, Benchmark, Harness, Environment, Execution, Runtime, Output, Metadata)
}


def as_request(request: Request | Mapping[str, Any]) -> Request:
    """Return a request from whatever a caller has; see `Request.from_members`."""
    return request if isinstance(request, Request) else Request.from_members(request)


# -- checks, each naming the field


def _section(kind: type[Section], value: Any, where: str) -> Section:
    if isinstance(value, kind):
        return value
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} is an object, not a {type(value).__name__}")
    known = set(kind.__struct_fields__) - {"extra"}
    members = {str(name): item for name, item in value.items()}
    extra = {name: item for name, item in members.items() if name not in known}
    fields: Json = {name: item for name, item in members.items() if name in known}
    if extra and "extra" not in kind.__struct_fields__:
        raise UsageError(f"{where} has no member {', '.join(sorted(extra))}")
    if "id" in known and "id" not in fields:
        raise UsageError(f"{where}.id is missing")
    return kind(**fields, **({"extra": extra} if extra else {}))


def _policy(value: Any, where: str) -> NetworkPolicy | None:
    if value is None or isinstance(value, NetworkPolicy):
        return value
    try:
        policy = _section(NetworkPolicy, {"network_mode": value} if isinstance(value, str) else value, where)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}") from None
    assert isinstance(policy, NetworkPolicy)
    return policy


def _component_id(value: Any, where: str) -> str:
    text = _text(value, where)
    if not text:
        raise UsageError(f"{where} is empty")
    return text


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError(f"{where} is a string, not {value!r:.80}")
    return value.strip()


def _texts(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UsageError(f"{where} is a list of strings, not a {type(value).__name__}")
    return [text for text in (_text(str(v) if hasattr(v, "__fspath__") else v, where) for v in value) if text]


def _object(value: Any, where: str) -> Json:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} is an object, not a {type(value).__name__}")
    return dict(value)


def _count(value: Any, where: str, minimum: int) -> int:
    if type(value) is not int or value < minimum:
        raise UsageError(f"{where} is a whole number from {minimum}, not {value!r:.80}")
    return value


def _flag(value: Any, where: str, *, optional: bool = False) -> bool | None:
    if isinstance(value, bool) or (optional and value is None):
        return value
    raise UsageError(f"{where} is true or false, not {value!r:.80}")


def _patterns(value: Any) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UsageError("execution.retry_pattern_list is a list of regular expressions")
    for pattern in value:
        try:
            re.compile(pattern)
        except (re.error, TypeError, RecursionError, OverflowError) as error:
            message = f"execution.retry_pattern_list: {pattern!r:.80} is no regular expression: {error}"
            raise UsageError(message) from None
    return list(value)


def _protocol(value: Any) -> str | list[str]:
    """Return one name, or an ordered list of them; automatic and absent are both the empty string."""
    if value is None or isinstance(value, str):
        text = _text(value, "model.api_protocol").lower()
        return "" if text == "auto" else text
    names = list(dict.fromkeys(name.lower() for name in _texts(value, "model.api_protocol")))
    if "auto" in names and len(names) > 1:
        raise UsageError("model.api_protocol: auto can't be combined with other protocols")
    return "" if names in ([], ["auto"]) else names


def _refuse_process_settings(extra: Json, where: str) -> None:
    found = sorted(PROCESS_SETTINGS & extra.keys())
    if found:
        raise UsageError(f"{where}.{found[0]} is a setting of the process, not of a request")
