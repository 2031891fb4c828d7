"""Credentials in the places and contexts where they occur, and the harmless texts of evaluations beside them."""

import json
import logging
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.format.events import PhaseChanged, TasksLoaded, TasksLoadedPayload, TaskStarted
from eventstore.recording.recorder import RunRecorder
from eventstore.redaction.redactor import MASK, find_secrets, find_secrets_in, redact, redact_text
from eventstore.redaction.shapes import SHAPES
from tests.tools.credentials import CONTEXTS, Credential, corpus, harmless, named, nested, tokens

TOKENS = tokens()
EXPECTED = 0.97


def is_shown(credential: Credential, written: str) -> bool:
    """Whether the secret, or its last part, can be read in what was written, however often it was encoded."""
    part = (
        credential.secret[-16:].rstrip("=").splitlines()[-1]
        if "\n" not in credential.secret
        else credential.secret[40:80]
    )
    for _ in range(5):
        if part in written:
            return True
        part = json.dumps(part)[1:-1]
    return False


def test_the_corpus_is_what_it_says() -> None:
    """400 credentials, 400 harmless texts, more than twelve places and contexts; most from named public sources."""
    found, calm = corpus(), harmless()
    assert len(found) >= 400 and len(calm) >= 400
    assert len({text for _, text in calm}) >= 390
    assert len({credential.kind for credential in named()} | set(CONTEXTS)) >= 12
    sources = Counter(credential.source for _, credential in found)
    assert sources["gitleaks"] + sources["detect-secrets"] >= len(found) / 2
    assert {token.kind for token in TOKENS} == {shape.kind for shape in SHAPES}


def test_nearly_all_credentials_are_masked_when_written_and_found_when_verified() -> None:
    """As a text, as a member of a payload, and as a line of JSON; the same ones are reported."""
    found = corpus()
    shown = [(context, one.text) for context, one in found if is_shown(one, redact_text(one.text))]
    written = [
        (context, one.text) for context, one in found if is_shown(one, json.dumps(redact({"error": [one.text]})))
    ]
    missed = [(context, one.text) for context, one in found if not find_secrets(json.dumps({"error": one.text}))]
    for misses in (shown, written, missed):
        assert len(misses) <= (1 - EXPECTED) * len(found), misses[:10]


def test_no_harmless_text_is_taken_for_a_secret() -> None:
    """Alone, inside JSON, and in a colour."""
    for source, text in harmless():
        for around in (text, json.dumps({"a": text}), f"\x1b[31m{text}\n"):
            assert find_secrets(around) == [], (source, around)
        assert redact({"note": text, "list": [text]}) == {"note": text, "list": [text]}


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(TOKENS),
    st.lists(st.sampled_from(sorted(CONTEXTS)), min_size=1, max_size=2),
    st.integers(0, 5),
)
def test_every_shape_is_found_in_every_context_at_any_depth(token: Credential, contexts: list[str], depth: int) -> None:
    """JSON inside JSON doubles the backslashes each time; the letter of an escape is no part of a word."""
    text = token.text
    for context in contexts:
        text = CONTEXTS[context](text)
    text = nested(text, depth)
    assert find_secrets(text)
    for written in (redact_text(text), json.dumps(redact({"x": {"y": [text]}}))):
        assert not is_shown(token, written)


@pytest.mark.parametrize("context", CONTEXTS)
def test_every_shape_is_found_in_each_context(context: str) -> None:
    """All of them, plain and in JSON."""
    for token in TOKENS:
        for depth in range(3):
            text = nested(CONTEXTS[context](token.text), depth)
            assert not is_shown(token, redact_text(text)), (token.kind, text)


def test_a_recorder_writes_no_token_that_a_program_printed(tmp_path: Path) -> None:
    """Behind line breaks, colours and in JSON, into each file of a run."""
    by_kind = {token.kind: token for token in TOKENS}
    chosen = [by_kind[kind] for kind in ("github_token", "anthropic_key", "aws_access_key_id", "slack_token")]
    request = {"model": {"id": "m"}, "benchmark": {"id": "b"}, "harness": {"id": "h"}, "environment": {"id": "host"}}
    with RunRecorder.create(tmp_path / "run", request=request) as run:
        run.append(TasksLoaded(payload=TasksLoadedPayload(total_tasks=1)))
        run.append(TaskStarted(task_id="t1", category="c"))
        for token in chosen:
            for context in CONTEXTS:
                said = CONTEXTS[context](token.text)
                payload = {"error": "tool said: " + json.dumps({"stdout": said}), "plain": said}
                run.append(PhaseChanged(task_id="t1", category="c", phase="run", payload=payload))
                logging.getLogger("agent").warning("%s", said)
        run.finish("failed", error="boom: " + json.dumps({"stderr": f"fatal:\n{chosen[0].text}\n{chosen[1].text}"}))
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"progress.jsonl", "run_info.json", "run.log"} <= {path.name for path in files}
    for path in files:
        written = path.read_text(encoding="utf-8", errors="replace")
        assert [token.kind for token in chosen if is_shown(token, written)] == [], path.name


KEY_LINES = [
    "-----BEGIN PRIVATE KEY-----",
    *("QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0NTY3ODkw",) * 3,
    "-----END PRIVATE KEY-----",
]
OBJECTS: list[tuple[object, object]] = [
    ({"pass": "letmein", "user": "bob"}, {"pass": MASK, "user": "bob"}),
    ({"pass": "hunter2-x"}, {"pass": MASK}),
    ({"bearer": "a1B2c3D4e5"}, {"bearer": MASK}),
    ({"DB_PASS": "letmein"}, {"DB_PASS": MASK}),
    ({"private_key_hex": "ab" * 32}, {"private_key_hex": MASK}),
    (
        {"extra_headers": {"X-Team": "abc", "Accept": "text/plain"}},
        {"extra_headers": {"X-Team": MASK, "Accept": "text/plain"}},
    ),
    ({"cookies": {"sid": "a1b2c3d4e5", "lang": "en"}}, {"cookies": {"sid": MASK, "lang": "en"}}),
    (
        {"cookies": [{"name": "sid", "value": "a1b2c3d4e5", "domain": "host"}]},
        {"cookies": [{"name": "sid", "value": MASK, "domain": "host"}]},
    ),
    ({"argv": ["mysql", "-u", "root", "-phunter2"]}, {"argv": ["mysql", "-u", "root", f"-p{MASK}"]}),
    ({"argv": ["sshpass", "-p", "hunter2", "ssh"]}, {"argv": ["sshpass", "-p", MASK, "ssh"]}),
    ({"argv": ["docker", "login", "-p", "hunter2"]}, {"argv": ["docker", "login", "-p", MASK]}),
    ({"lines": KEY_LINES}, {"lines": [KEY_LINES[0], MASK, MASK, MASK, KEY_LINES[-1]]}),
]


@pytest.mark.parametrize(("value", "masked"), OBJECTS)
def test_what_an_object_shows_is_masked_and_reported_with_its_place(value: object, masked: object) -> None:
    """Names that need a look at the value, arguments, headers, cookies, a key over a list of lines."""
    assert redact(value) == masked
    assert redact(masked) == masked
    assert find_secrets_in(value) and not find_secrets_in(masked)
    assert "argv" not in str(value) or find_secrets_in(value)[0][0].startswith("argv[")


@pytest.mark.parametrize(
    "value",
    [
        {"pass": "all", "fail": "none"},
        {"pass": 3, "FAIL_TO_PASS": ["test_a1b2c3"], "PASS_TO_PASS": "test_a1b2c3d4"},
        {"name": "easy", "value": "y", "domain": "math"},
        {"cookies": "chocolate", "salt": 5, "auth": None, "auths": 2},
        {"response_headers": {"x-served-by": "a1b2c3d4e5"}, "extra_headers": {"User-Agent": "x/1"}},
        {"argv": ["docker", "run", "-p", "8080:80", "x"], "cmd": ["mkdir", "-p", "a1b2c3d4"]},
        {"argv": ["mysql", "-P", "3306", "-h", "db"]},
    ],
)
def test_objects_that_look_alike_are_left_alone(value: object) -> None:
    """The very same object comes back."""
    assert redact(value) is value
    assert find_secrets_in(value) == []
