"""The typed request: every section of the specification, checked before anything is made, stored as specified."""

import json
from pathlib import Path

import pytest

from eventstore.errors import UsageError
from eventstore.recording.request import (
    Attempts,
    Benchmark,
    Environment,
    Execution,
    Harness,
    Metadata,
    Model,
    NetworkPolicy,
    Output,
    Request,
    Runtime,
)
from tests.tools.recorded import ROOT, RUNS

MINIMAL = {"model": {"id": "m"}, "benchmark": {"id": "b"}, "harness": {"id": "h"}, "environment": {"id": "e"}}


def request(**sections) -> Request:
    return Request.from_members({**MINIMAL, **sections})


@pytest.mark.parametrize("name", RUNS)
def test_recorded_requests_are_read_and_written_alike(name):
    """What AgentCompass 1.0.1 stored comes back unchanged, in both files, but for our default policy."""
    run = ROOT / RUNS[name]
    stored = json.loads((run / "run_info.json").read_text())["request"]
    read = Request.from_members(stored)
    record = read.record()
    assert record["environment"].pop("network_policy") == {"network_mode": "public"}
    assert record == stored
    if (run / "params.json").exists():
        assert read.params_record() == json.loads((run / "params.json").read_text())


def test_effective_defaults_are_written_and_empty_members_are_not():
    """Nulls, empty objects and lists go; empty strings and switches stay."""
    assert request().record() == {
        "model": {"id": "m", "base_url": "", "api_key": "", "api_protocol": ""},
        "benchmark": {"id": "b"},
        "harness": {"id": "h"},
        "environment": {"id": "e", "network_policy": {"network_mode": "public"}},
        "execution": {
            "task_concurrency": 32,
            "attempts": {"k": 1, "strategy": "avg"},
            "keep_environment": False,
            "enable_analysis": True,
            "max_retries": 0,
        },
        "runtime": {"reuse": False, "checkpoint_resume": True},
        "output": {"run_name": "", "run_id": ""},
    }
    assert request().params_record() == {
        "model": {"id": "m"},
        "benchmark": {"id": "b"},
        "execution": {"attempts": {"k": 1, "strategy": "avg"}},
    }


def test_a_request_can_be_built_from_typed_sections():
    """Objects and plain members give the same request."""
    built = Request(
        model=Model(id="m", base_url="http://h/v1", api_protocol=["openai-chat", "anthropic"], params={"t": 0}),
        benchmark=Benchmark(id="b", params={"n": 4}),
        harness=Harness(id="h"),
        environment=Environment(
            id="e", run_network_policy=NetworkPolicy(network_mode="allowlist", allowed_hosts=["x.org"])
        ),
        execution=Execution(attempts=Attempts(k=3, strategy="pass"), retry_pattern_list=["429", "time.?out"]),
        runtime=Runtime(reuse_run_id="r0"),
        output=Output(run_name="n", run_id="r1"),
        metadata=Metadata(config_path=["a.yaml", "b.yaml"], recipe_dirs=["recipes"]),
    )
    record = built.record()
    assert record["model"]["api_protocol"] == ["openai-chat", "anthropic"]
    assert record["environment"]["run_network_policy"] == {"network_mode": "allowlist", "allowed_hosts": ["x.org"]}
    assert record["runtime"] == {"reuse": True, "reuse_run_id": "r0", "checkpoint_resume": True}
    assert record["metadata"] == {"config_path": '["a.yaml","b.yaml"]', "recipe_dirs": ["recipes"]}
    assert record["execution"]["retry_pattern_list"] == ["429", "time.?out"]
    assert Request.from_members(record).record() == record
    assert built.params_record()["output"] == {"run_name": "n", "run_id": "r1"}


@pytest.mark.parametrize("protocol", ["auto", "AUTO", None, "", [], ["auto"]])
def test_automatic_and_absent_protocol_are_the_empty_string(protocol):
    """The literal `auto` is never stored."""
    assert request(model={"id": "m", "api_protocol": protocol}).record()["model"]["api_protocol"] == ""


@pytest.mark.parametrize(
    ("paths", "stored"),
    [("a.yaml", "a.yaml"), (["a.yaml"], "a.yaml"), ([], None), (None, None), ([Path("a"), "b"], '["a","b"]')],
)
def test_config_paths_are_one_string(paths, stored):
    """One path as it is, several as a JSON array in a string, none left out."""
    assert request(metadata={"config_path": paths}).record().get("metadata", {}).get("config_path") == stored


def test_secrets_never_leave_the_request():
    """Keys, containers, underscore members of parameter objects and credentials in URLs; references stay."""
    record = request(
        model={
            "id": "m",
            "api_key": "sk-0123456789abcdef0123",
            "base_url": "https://u:hunter22@h/v1",
            "params": {"headers": {"X": "y"}, "_session": 1, "max_tokens": 5, "token": "${TOKEN}"},
        },
    ).record()
    assert record["model"]["api_key"] == "********"
    assert record["model"]["params"] == {"headers": {"X": "********"}, "max_tokens": 5, "token": "${TOKEN}"}
    assert "hunter22" not in json.dumps(record)


WRONG = {
    "a request is an object": None,
    "lacks benchmark": {"model": {"id": "m"}},
    "no section surprise": {**MINIMAL, "surprise": {}},
    "model.id is missing": {**MINIMAL, "model": {}},
    "model.id is empty": {**MINIMAL, "model": {"id": "  "}},
    "benchmark.id is a string": {**MINIMAL, "benchmark": {"id": 5}},
    "benchmark.params is an object": {**MINIMAL, "benchmark": {"id": "b", "params": [1]}},
    "environment is an object": {**MINIMAL, "environment": "e"},
    "environment.network_policy: network_mode is one of": {
        **MINIMAL,
        "environment": {"id": "e", "network_policy": {"network_mode": "sometimes"}},
    },
    "go together": {**MINIMAL, "environment": {"id": "e", "run_network_policy": "allowlist"}},
    "execution.task_concurrency is a whole number": {**MINIMAL, "execution": {"task_concurrency": 0}},
    "execution.max_retries is a whole number": {**MINIMAL, "execution": {"max_retries": -1}},
    "execution.attempts.k is a whole number": {**MINIMAL, "execution": {"attempts": {"k": True}}},
    "execution.attempts has no member": {**MINIMAL, "execution": {"attempts": {"n": 1}}},
    "is no regular expression": {**MINIMAL, "execution": {"retry_pattern_list": ["("]}},
    "retry_pattern_list is a list": {**MINIMAL, "execution": {"retry_pattern_list": "x"}},
    "keep_environment is true or false": {**MINIMAL, "execution": {"keep_environment": 1}},
    "runtime.reuse is true or false": {**MINIMAL, "runtime": {"reuse": "yes"}},
    "runtime.results_dir is a setting of the process": {**MINIMAL, "runtime": {"results_dir": "x"}},
    "execution.timeout_seconds is a setting of the process": {**MINIMAL, "execution": {"timeout_seconds": 5}},
    "auto can't be combined": {**MINIMAL, "model": {"id": "m", "api_protocol": ["auto", "x"]}},
    "recipe_dirs is a list": {**MINIMAL, "metadata": {"recipe_dirs": "x"}},
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_request_is_refused_by_the_name_of_its_field(words):
    """A clear sentence, never a traceback."""
    with pytest.raises(UsageError, match=words):
        Request.from_members(WRONG[words])
