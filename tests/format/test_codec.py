"""Lines to events and back: nothing is lost, odd values included."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.errors import MalformedLineError
from eventstore.format import codec
from eventstore.format.events import (
    ENVELOPE,
    KNOWN_EVENTS,
    PhaseChanged,
    TaskFinished,
    TaskFinishedPayload,
    TaskStarted,
    TaskStartedPayload,
    UnknownEvent,
    event_name,
)
from tests.tools.recorded import RUNS


def line_of(**changes: Any) -> bytes:
    members: dict[str, Any] = dict.fromkeys(ENVELOPE)
    members |= {"run_id": "r", "event": "phase_changed", "timestamp": 1.5, "payload": {}}
    return codec.dump_compact(members | changes)


def test_all_thirteen_events_are_typed_and_named_as_the_specification_names_them() -> None:
    """The tags are the storage format; the order of members is the specification's."""
    assert set(KNOWN_EVENTS) >= {
        "run_started",
        "tasks_loaded",
        "reuse_loaded",
        "task_started",
        "phase_changed",
        "attempt_started",
        "execution_plan_resolved",
        "attempt_retry",
        "attempt_finished",
        "partial_saved",
        "task_finished",
        "summary_started",
        "run_finished",
    }
    for name, kind in KNOWN_EVENTS.items():
        line = codec.encode(kind(run_id="r", timestamp=2))  # type: ignore[arg-type]
        assert list(json.loads(line)) == list(ENVELOPE)
        assert json.loads(line)["event"] == name
        assert event_name(codec.decode(line)) == name


@pytest.mark.parametrize("name", list(RUNS))
def test_recorded_lines_survive_a_round_trip(name: str, runs_root: Path) -> None:
    """Every line that AgentCompass wrote decodes by both paths to the same event, and encodes to its compact form."""
    for line in (runs_root / RUNS[name] / "progress.jsonl").read_bytes().splitlines():
        event = codec.decode(line)
        assert event == codec.decode_tolerantly(line)
        assert codec.encode(event) == codec.dump_compact(json.loads(line))


ODD_LINES = {
    "NaN in a payload": line_of(payload={"score": float("nan")}),
    "infinities": line_of(payload={"a": float("inf"), "b": [float("-inf")]}, timestamp=float("nan")),
    "an integer beyond 64 bits": line_of(payload={"n": 2**80}, attempt=2**70, request_index=-(2**64)),
    "a lone surrogate": line_of(task_id="a\ud800b", payload={"error": "\udfff"}),
    "unknown payload members": line_of(event="task_started", payload={"z": 1, "index": 0, "a": {"b": []}, "total": 4}),
    "an unknown event": line_of(event="from_the_future", payload={"x": [None]}),
    "an unknown envelope member": line_of(new_member={"deep": [1, 2]}),
    "a member of another type": line_of(event="tasks_loaded", payload={"total_tasks": "four"}),
    "a number as category": line_of(event="task_finished", category=7, payload={"index": 0, "severity": ""}),
    "an integer timestamp": line_of(timestamp=1795962624),
    "a line separator in a string": line_of(task_id="a\u2028b\u0085c"),
    "an escape sequence": line_of(task_id="\x1b[31mred\x00"),
    "a proof": line_of()[:-1] + b',"log":{"seq":3,"prev":"0000000000000000","xxh3":"ffffffffffffffff"}}',
    "an unknown member and a proof": line_of(new=1)[:-1] + b',"log":{"seq":3,"prev":"0","xxh3":"f"}}',
}


@pytest.mark.parametrize("what", list(ODD_LINES))
def test_odd_values_are_read_and_written_again_byte_for_byte(what: str) -> None:
    """What JSON writers in the wild produce is neither refused nor changed."""
    line = ODD_LINES[what]
    assert codec.encode(codec.decode(line)) == line


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.characters(categories=["Cs"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([*KNOWN_EVENTS, "unknown"]),
    st.dictionaries(st.sampled_from(["index", "total", "severity", "error", "x", "y"]), JSON_VALUES, max_size=4),
    st.text(max_size=5),
)
def test_any_payload_survives(name: str, payload: dict[str, Any], run_id: str) -> None:
    """Whatever a payload holds, it comes back equal, and encoding what was decoded is stable."""
    line = line_of(event=name, payload=payload, run_id=run_id)
    event = codec.decode(line)
    written = codec.encode(event)
    assert codec.encode(codec.decode(written)) == written
    assert codec.dump_compact(codec.parse_object(written)) == codec.dump_compact(codec.parse_object(line))


def test_either_parser_reads_a_damaged_line_as_the_same_object_or_not_at_all(runs_root: Path) -> None:
    """The quick one stands in only where Python's own would have read the very same."""
    random = Random(7)
    lines = (runs_root / RUNS["r_retry2"] / "progress.jsonl").read_bytes().splitlines()
    pieces = [b"1e400", b"-0.0", b"NaN", b'"\\ud83d"', b"9" * 25, b"9" * 5000, b"\x00", b'{"a":1,"a":2}']
    pieces += [bytes([byte]) for byte in b'{}[],:" ']
    read = 0
    for _ in range(20_000):
        line = random.choice(lines)
        for _ in range(random.randint(0, 2)):
            at = random.randrange(len(line))
            line = line[:at] + random.choice(pieces) + line[at + random.randint(0, 2) :]
        try:
            wanted = codec._parse_tolerantly(line)
        except MalformedLineError:
            wanted = None
        try:
            got = codec.parse_object(line)
        except MalformedLineError:
            got = None
        assert repr(got) == repr(wanted if isinstance(wanted, dict) else None)
        read += got is not None
    assert 5_000 < read < 19_000


def test_unknown_events_and_members_are_at_hand() -> None:
    """They are kept, not only carried along."""
    event = codec.decode(ODD_LINES["an unknown event"])
    assert isinstance(event, UnknownEvent)
    assert event.event == "from_the_future" and event.payload == {"x": [None]}
    started = codec.decode(ODD_LINES["unknown payload members"])
    assert isinstance(started, TaskStarted) and started.payload.total == 4
    assert codec.payload_members(started)["a"] == {"b": []}
    odd = codec.decode(ODD_LINES["an unknown envelope member"])
    assert codec.envelope_members(odd)["new_member"] == {"deep": [1, 2]}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "Expecting value at byte 0"),
        (b"\x00" * 40, "Expecting value at byte 0"),
        (b"[1,2]", "a JSON array where an object must stand"),
        (b"42", "a JSON number"),
        (b"{}", "a JSON object without run_id"),
        (b'{"run_id":1,"event":"x","timestamp":1}', "run_id is not a string"),
        (b'{"run_id":"r","event":"x","timestamp":"soon"}', "timestamp is not a number"),
        (b'{"run_id":"r","event":"x","timestamp":true}', "timestamp is not a number"),
        (b'{"run_id":"r","event":"x","timestamp":1,"payload":[]}', "payload is not an object"),
        (b'{"run_id":"r","event":"x","timestamp":1,"task_id":{}}', "task_id is not a single value"),
        (b'{"run_id":"r","event":"x","timestamp":1,"payload":{"a":"\xff"}}', "invalid UTF-8 at byte 56"),
        (b'{"run_id":"r","event":"x","timestamp":1,"payload":{"a":"\xed\xa0\x80"}}', "invalid UTF-8 at byte 56"),
        (line_of()[:-5], "not JSON"),
        (line_of() + b"TRAILER", "Extra data"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_lines_that_are_no_event_are_refused_with_the_place(line: bytes, reason: str) -> None:
    """The reason names what is wrong and the byte."""
    with pytest.raises(MalformedLineError, match=reason.replace("(", r"\(")):
        codec.decode(line)


def test_repeated_keys_are_read_last_wins_and_can_be_told() -> None:
    """As Python's json does; DuckDB would take the first, so the difference matters."""
    line = line_of(status="a")[:-1] + b',"status":"b"}'
    assert codec.decode(line).status == "b"
    assert codec.duplicate_keys(line) == ["status"]
    assert codec.duplicate_keys(line_of()) == []


def test_what_json_has_no_form_for_is_refused_when_writing() -> None:
    """A set would be written in an order that depends on the hash seed; an object by its address."""
    with pytest.raises(TypeError):
        codec.encode(PhaseChanged(run_id="r", timestamp=1, payload={"x": object()}))


def test_typed_payloads_write_only_what_is_set() -> None:
    """Absent members stay absent; None is written as null, as AgentCompass does."""
    event = TaskFinished(run_id="r", timestamp=1, payload=TaskFinishedPayload(index=0, severity=None))
    assert json.loads(codec.encode(event))["payload"] == {"index": 0, "severity": None}
    by_dict = TaskStarted(run_id="r", timestamp=1, payload={"index": 0, "own": float("inf")})  # type: ignore[arg-type]
    assert json.loads(codec.encode(by_dict))["payload"] == {"index": 0, "own": float("inf")}
    assert codec.encode(TaskStarted(run_id='q"\n', timestamp=1, payload=TaskStartedPayload())).startswith(
        b'{"run_id":"q\\"\\n","event":"task_started","timestamp":1,'
    )


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"a": []},
        {"a": {}, "b": [{}], "c": [[]]},
        {'é\n\t"\\\x7f\u2028': "é\x1f"},
        1.5,
        1e16,
        1e-7,
        float("nan"),
        float("-inf"),
        {"a": [1, 2, {"b": None}]},
        10**30,
        {"z": 1, "a": 2},
    ],
)
@pytest.mark.parametrize("sort_keys", [True, False])
def test_snapshot_layout_is_the_standard_librarys(value: Any, sort_keys: bool) -> None:
    """Laid out fast, but to the byte as AgentCompass's json.dump(indent=2) does it."""
    expected = (json.dumps(value, ensure_ascii=False, indent=2, sort_keys=sort_keys) + "\n").encode()
    assert codec.dump_pretty(value, sort_keys=sort_keys) == expected
