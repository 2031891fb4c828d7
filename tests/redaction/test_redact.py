"""What is written holds no secrets, and nothing that isn't one is lost."""

import json
import lzma
import random
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, IntEnum
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct, structs

from eventstore.format.codec import encode
from eventstore.format.events import PhaseChanged
from eventstore.redaction.events import Masker
from eventstore.redaction.names import is_secret_name
from eventstore.redaction.redactor import (
    MASK,
    Redactor,
    compact_parameters,
    find_secrets,
    redact,
    redact_keys,
    redact_text,
    redact_values,
    secret_environment_values,
)
from eventstore.redaction.shapes import SHAPES
from eventstore.stream.encode import Speller
from tests.tools.credentials import tokens

GOLDEN = Path(__file__).parents[1] / "data/redaction/keys.jsonl.xz"
# Made up, and put together here so that no scanner takes this file for a leak.
LONG = "a1B2c3D4e5" * 8
HEX = "0123456789abcdef" * 4
JWT = "eyJ" + "hbGciOiJIUzI1NiJ9" + ".eyJ" + "zdWIiOiIxMjM0In0" + "." + LONG[:40]


# --- the rule of AgentCompass ---


def golden() -> list[dict[str, Any]]:
    with lzma.open(GOLDEN, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_key_rules_give_what_agentcompass_gives() -> None:
    """Plans, params.json and the request of run_info.json equal AgentCompass's, in values, types and order."""
    cases = golden()
    assert len(cases) == 2000
    for case in cases:
        value = case["in"]
        before = json.dumps(value)
        assert json.dumps(redact_keys(value)) == json.dumps(case.get("keys", value))
        assert json.dumps(compact_parameters(value)) == json.dumps(case.get("params", value))
        assert json.dumps(redact_keys(value, parameters=True)) == json.dumps(case.get("request", value))
        assert json.dumps(value) == before


def test_key_rules_cover_tuples_paths_and_keys_that_are_no_strings() -> None:
    """What a caller may pass besides JSON is stored as AgentCompass stores it."""
    given_value = {1: ("a", PurePosixPath("/x")), "token": PurePosixPath("/x"), "headers": (None, "", 5, ("v",))}
    assert redact_keys(given_value) == {"1": ["a", "/x"], "token": MASK, "headers": [None, "", MASK, [MASK]]}


def test_requests_lose_underscore_fields_nulls_and_empty_members() -> None:
    """The four rules of parameter objects, seen at once; a sensitive key stays even when its value is empty."""
    request = {"_private": 1, "b": None, "a": {"x": {}, "y": []}, "api_key": None, "model": {"api_key": "k", "id": ""}}
    assert redact_keys(request, parameters=True) == {"api_key": None, "model": {"api_key": MASK, "id": ""}}
    assert redact_keys(request) == {**request, "model": {"api_key": MASK, "id": ""}}


@pytest.mark.parametrize("kept", [None, "", "${OPENAI_API_KEY}", " ${A_1} "])
def test_values_that_hold_no_secret_stay_under_a_sensitive_key(kept: object) -> None:
    """An empty value says that nothing was configured, a reference says where it comes from."""
    assert redact_keys({"api_key": kept}) == {"api_key": kept}
    assert redact({"api_key": kept}) == {"api_key": kept}


# --- credentials inside texts ---

SECRET_TEXTS = {
    "url": ("https://user:hunter2@host/x", "https://********@host/x"),
    "url with odd password": ("postgres://admin:p@ss:w0rd@db:5432/x", "postgres://********@db:5432/x"),
    "url without user": ("redis://:hunter2@cache:1", "redis://********@cache:1"),
    "url with a key as user": (f"https://{LONG[:24]}@host", "https://********@host"),
    "bearer": ("Authorization: Bearer abc123", "Authorization: Bearer ********"),
    "bearer in prose": (f"sent bearer {LONG[:20]} to it", "sent bearer ******** to it"),
    "basic": ("Basic dXNlcjpwYXNzd29yZA== failed", "Basic ******** failed"),
    "header in JSON": ('{"Authorization": "Bearer xyz"}', '{"Authorization": "Bearer ********"}'),
    "headers as repr": ("headers={'X-Api-Key': 'foo', 'A': 'b'}", "headers={'X-Api-Key': '********', 'A': 'b'}"),
    "cookie": ("Set-Cookie: session=abc; Path=/", "Set-Cookie: ********"),
    "environment": ("API_KEY=xyz python run.py", "API_KEY=******** python run.py"),
    "environment, odd": ("DB_PASSWORD=a,b&c(d)e x", "DB_PASSWORD=******** x"),
    "export": ('export OPENAI_API_KEY="xyz"', 'export OPENAI_API_KEY="********"'),
    "option": ("run --api-key xyz --n 5", "run --api-key ******** --n 5"),
    "option with =": ("run --token=xyz --n 5", "run --token=******** --n 5"),
    "yaml": ("password: letmein", "password: ********"),
    "JSON": ('{"api_key": "xyz", "n": 1}', '{"api_key": "********", "n": 1}'),
    "JSON with a provider's key": (
        '{"serper_key": "xyz", "sort_key": "n"}',
        '{"serper_key": "********", "sort_key": "n"}',
    ),
    "JSON with a numeric password": ('{"password": 1234, "n": 1}', '{"password": "********", "n": 1}'),
    "JSON in JSON": (r'"{\"api_key\": \"xyz\", \"n\": 1}"', r'"{\"api_key\": \"********\", \"n\": 1}"'),
    "JSON with escapes": (r'{"password": "a\"b\\", "n": 1}', '{"password": "********", "n": 1}'),
    "headers in JSON": (
        '{"headers": {"X": "abc", "n": 5}, "x": "y"}',
        '{"headers": {"X": "********", "n": 5}, "x": "y"}',
    ),
    "env in JSON in JSON": (r"{\"env\": {\"X\": \"abc\"}, \"x\": 1}", r"{\"env\": {\"X\": \"********\"}, \"x\": 1}"),
    "camel case": ("clientSecret=abc, accessToken='def'", "clientSecret=********, accessToken='********'"),
    "keyword argument": ("OpenAI(api_key='abc', base_url='x')", "OpenAI(api_key='********', base_url='x')"),
    "annotated": ('api_key: str = "abc"', 'api_key: str = "********"'),
    "subscript": ('os.environ["API_KEY"] = "abc"', 'os.environ["API_KEY"] = "********"'),
    "provider's message": ("Incorrect API key provided: foobar12. See", "Incorrect API key provided: ******** See"),
    "query": ("https://x/y?access_token=abc&z=1", "https://x/y?access_token=********&z=1"),
    "signed address": (f"https://x/a?sv=1&sig={LONG[:20]}%3D&x=1", "https://x/a?sv=1&sig=********&x=1"),
    "connection string": (f"Account=x;AccountKey={LONG[:20]}==;End=y", "Account=x;AccountKey=********;End=y"),
    "curl": ("curl -u bob:pw123 https://x", "curl -u ******** https://x"),
    "jwt": (f"got {JWT}, ok", "got ********, ok"),
    "half quoted": ('token="abc def', 'token="********'),
}


@pytest.mark.parametrize("case", SECRET_TEXTS)
def test_a_secret_in_a_text_is_masked_and_the_rest_kept(case: str) -> None:
    """Each notation: the secret goes, what surrounds it stays, and `find_secrets` points at it."""
    text, expected = SECRET_TEXTS[case]
    assert redact_text(text) == expected
    assert redact({"message": text}) == {"message": expected}
    assert find_secrets(text)
    assert not find_secrets(expected)


TOKENS = {
    "anthropic_key": "sk-ant-api03-" + LONG,
    "openai_key": "sk-proj-" + LONG[:40],
    "api_key": "sk-" + LONG[:48],
    "hugging_face_token": "hf_" + LONG[:34],
    "google_api_key": "AIza" + LONG[:35],
    "groq_key": "gsk_" + LONG[:52],
    "xai_key": "xai-" + LONG,
    "replicate_token": "r8_" + LONG[:37],
    "perplexity_key": "pplx-" + LONG[:48],
    "nvidia_key": "nvapi-" + LONG[:64],
    "fireworks_key": "fw_" + LONG[:24],
    "together_key": "tgp_v1_" + LONG[:40],
    "cerebras_key": "csk-" + LONG[:48],
    "tavily_key": "tvly-dev-" + LONG[:32],
    "jina_key": "jina_" + LONG[:60],
    "langsmith_key": "lsv2_pt_" + HEX[:32] + "_" + HEX[:10],
    "langfuse_key": "pk-lf-" + HEX[:36],
    "wandb_key": "wandb_v1_" + LONG[:60],
    "e2b_key": "e2b_" + HEX[:40],
    "daytona_key": "dtn_" + HEX,
    "github_token": "ghp_" + LONG[:36],
    "gitlab_token": "glpat-" + LONG[:20],
    "npm_token": "npm_" + LONG[:36],
    "pypi_token": "pypi-AgE" + "IcHlwaS5vcmc" + LONG,
    "rubygems_key": "rubygems_" + HEX[:48],
    "docker_token": "dckr_pat_" + LONG[:27],
    "atlassian_token": "ATATT3" + LONG,
    "aws_access_key_id": "AKIA" + "IOSFODNN7EXAMPLE",
    "alibaba_access_key_id": "LTAI" + LONG[:20],
    "tencent_secret_id": "AKID" + LONG[:32],
    "volcengine_access_key_id": "AKLT" + LONG[:40],
    "google_oauth_token": "ya29." + LONG,
    "google_oauth_secret": "GOCSPX-" + LONG[:28],
    "azure_client_secret": "aB1" + "8Q~" + LONG[:34],
    "digitalocean_token": "dop_v1_" + HEX,
    "databricks_token": "dapi" + HEX[:32],
    "vault_token": "hvs." + LONG,
    "terraform_token": LONG[:14] + ".atlasv1." + LONG[:60],
    "tailscale_key": "tskey-auth-" + LONG[:20],
    "fly_token": "fm2_" + LONG,
    "supabase_token": "sbp_" + HEX[:40],
    "planetscale_token": "pscale_tkn_" + LONG[:32],
    "pulumi_token": "pul-" + HEX[:40],
    "doppler_token": "dp.pt." + LONG[:43],
    "age_secret_key": "AGE-SECRET-KEY-1" + "QPZRY9X8GF" * 6,
    "slack_token": "xoxb-" + "123456789012-" + LONG[:24],
    "stripe_key": "sk_live_" + LONG[:24],
    "webhook_secret": "whsec_" + LONG[:32],
    "sendgrid_key": "SG." + LONG[:22] + "." + LONG[:43],
    "twilio_key": "SK" + HEX[:32],
    "telegram_token": "123456789:AA" + LONG[:33],
    "grafana_token": "glsa_" + LONG[:32] + "_" + HEX[:8],
    "linear_key": "lin_api_" + LONG[:40],
    "notion_token": "ntn_" + LONG[:46],
    "new_relic_key": "NRAK-" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ0",
    "postman_key": "PMAK-" + HEX[:24] + "-" + HEX[:34],
    "sentry_token": "sntryu_" + HEX,
    "shopify_token": "shpat_" + HEX[:32],
    "square_token": "sq0atp-" + LONG[:22],
    "figma_token": "figd_" + LONG[:40],
    "webhook_url": "https://hooks.slack.com/services/" + "T00000000/B00000000/" + LONG[:24],
    "jwt": JWT,
    "private_key": "-----BEGIN RSA PRIVATE KEY-----\n" + LONG + "\n" + LONG + "=\n-----END RSA PRIVATE KEY-----",
}


@pytest.mark.parametrize("kind", TOKENS)
def test_a_known_token_is_masked_wherever_it_stands(kind: str) -> None:
    """Alone, in a sentence, in quotes, under an innocent key, as a key, in a list: the token is not in the output."""
    token = TOKENS[kind]
    tail = token[-20:]
    for text in (token, f"failed with {token}, retrying", f'x="{token}"', f"({token})", f"a\n{token}\nb"):
        assert tail not in redact_text(text)
        assert {kind, "named_secret"} & {match.kind for match in find_secrets(text)}
    for value in ({"x": token}, {token: 1}, [[token]], (1, token), {"x": {"y": [{"z": f"<{token}>"}]}}):
        assert tail not in json.dumps(redact(value))


def test_every_shape_has_an_example() -> None:
    """A shape that no example reaches may be dead."""
    assert {shape.kind for shape in SHAPES} == {*TOKENS, *(token.kind for token in tokens())}


HARMLESS = [
    "max_tokens=512",
    "max_tokens: 512, prompt_tokens: 12, 'completion_tokens': 7",
    "tokens_used 5 total_tokens=5 cached_tokens=0",
    "eos_token: </s> pad_token=<pad> next_token=foo12345678",
    f"sha256:{HEX}",
    "commit 4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "xxh3=a1f04b825dc642cb md5 d41d8cd98f00b204e9800998ecf8427e",
    "550e8400-e29b-41d4-a716-446655440000",
    "sk-learn-classification-0123",
    "task-sk-learn-pipelines-12",
    "disk-0123456789abcdef01",
    "django__django-12345 sympy__sympy-20590 astropy__astropy-14182",
    "arith-002--4dea1db195ac7e22d25395adad519e9c4ac62fef5cca6bd0142cf9827247bffb",
    "request_key=0e6a3c28eba24d62acdb4a66c0a39659/0",
    "sort_key=name primary_key: id key=value",
    "Unexpected token: } and unexpected token 'foo' at 3",
    "basic arithmetic: 5, Basic knowledge is enough",
    "the bearer certificate is missing",
    "password: None, api_key=None, token=",
    "api_key=api_key, token=self.token, key=get_key(1)",
    'api_key=os.getenv("X") password=getpass.getpass()',
    "API_KEY=${API_KEY} --token $TOKEN --password <password>",
    "tokenizer = AutoTokenizer.from_pretrained(x)",
    "the options --username and --password can't be combined",
    "http://127.0.0.1:18082/v1 contact me@example.org",
    "ssh://git@github.com/x/y.git",
    "PWD=/root/work OLDPWD=/root",
    '{"token": "the", "logprob": -0.1}',
    "wrap_api_key=True password_hash=abc",
    "KeyError: 'api_key'",
    "accuracy=0.5 pass@1: 0.3 k=2",
    "https://********@host Bearer ******** api_key=********",
    "cache-key-d41d8cd98f00b204e9800998ecf8427e",
    "-----BEGIN PRIVATE KEY----- is expected at the start",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_is_left_alone(text: str) -> None:
    """Counts, hashes, ids, special tokens, prose, code and references come back as the same object."""
    assert redact_text(text) is text
    assert find_secrets(text) == []
    value = {"message": text, "list": [text]}
    assert redact(value) is value


def test_recorded_runs_hold_nothing_that_is_taken_for_a_secret(runs_root: Path) -> None:
    """Streams, snapshots and logs of real runs are left alone, to the byte."""
    files = [path for path in runs_root.rglob("*") if path.suffix in (".json", ".jsonl", ".log") and path.is_file()]
    assert len(files) > 50
    for path in files:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            assert find_secrets(line) == [], path


# --- values and keys together ---


def assert_masked_where(reference: Any, value: Any) -> None:
    """Wherever `reference` has a mask, `value` has one."""
    if value == MASK:
        return
    if isinstance(reference, dict):
        for key, item in reference.items():
            if key != "metrics":
                assert_masked_where(item, value[key])
    elif isinstance(reference, list):
        for item, other in zip(reference, value, strict=True):
            assert_masked_where(item, other)
    else:
        assert reference != MASK


def test_whatever_agentcompass_masks_is_masked() -> None:
    """Our redaction goes further than the key rule and never less far (numbers among metrics apart)."""
    for case in golden():
        assert_masked_where(case.get("keys", case["in"]), redact(case["in"]))


def test_counts_hashes_ids_and_metrics_survive_in_payloads() -> None:
    """The very object comes back, so nothing can have been lost."""
    payload = {
        "max_tokens": 512,
        "tokens_used": 7,
        "usage": {"prompt_tokens": 5, "completion_tokens": 2},
        "sha256": HEX,
        "commit": HEX[:40],
        "id": "550e8400-e29b-41d4-a716-446655440000",
        "task": "sk-learn-1",
        "wrap_api_key": True,
        "metrics": {"accuracy": 0.5, "api_key": 1.0, "by": {"token": 3}},
        "keys": ["a"],
        "secret": 5,
        "key": "v",
    }
    assert redact(payload) is payload


def test_texts_among_metrics_are_no_exception() -> None:
    """Numbers are facts there; a string under a sensitive name is masked as everywhere."""
    assert redact({"metrics": {"api_key": "abc", "token": 1}}) == {"metrics": {"api_key": MASK, "token": 1}}


@pytest.mark.parametrize("value", [{}, [], "", None, 0, (), False])
def test_empty_values_come_back_at_once(value: object) -> None:
    """Most payloads are empty."""
    assert redact(value) is value


def test_only_what_changed_is_copied() -> None:
    """The rest is shared, so redaction costs what it finds; the argument stays as it was."""
    big = {"x": list(range(10))}
    payload = {"big": big, "error": "password=hunter2"}
    redacted = redact(payload)
    assert redacted == {"big": big, "error": f"password={MASK}"}
    assert redacted["big"] is big
    assert payload["error"] == "password=hunter2"


COMMAND_LINES: list[tuple[list[Any], list[Any]]] = [
    (["run", "--api-key", "xyz", "--n", "5"], ["run", "--api-key", MASK, "--n", "5"]),
    (["--token=xyz", "API_KEY=xyz"], [f"--token={MASK}", f"API_KEY={MASK}"]),
    (["-e", "HF_TOKEN=xyz", "--password", "a b"], ["-e", f"HF_TOKEN={MASK}", "--password", MASK]),
    (
        ["/usr/bin/curl", "-u", "bob:pw", "-H", "X-Api-Key: k"],
        ["/usr/bin/curl", "-u", MASK, "-H", f"X-Api-Key: {MASK}"],
    ),
    (["Authorization", "abc"], ["Authorization", MASK]),
    (["--api-key", "${KEY}", "--sort-key", "name", "--max-tokens", "5"],) * 2,
    (["docker", "run", "-u", "1000:1000", "--token"],) * 2,
]


@pytest.mark.parametrize(("argv", "expected"), COMMAND_LINES)
def test_command_lines_as_lists_are_understood(argv: list[Any], expected: list[Any]) -> None:
    """An option says of the next item that it is a secret."""
    assert redact({"argv": argv}) == {"argv": expected}
    if argv == expected:
        assert redact(argv) is argv


def test_name_and_value_pairs_are_understood() -> None:
    """The notation of container orchestration."""
    pairs = [{"name": "API_KEY", "value": "xyz"}, {"name": "LANG", "value": "C"}]
    assert redact({"variables": pairs}) == {"variables": [{"name": "API_KEY", "value": MASK}, pairs[1]]}


def test_names_that_agentcompass_misses_are_masked_too() -> None:
    """Glued and camel-case spellings; strings only, since these names are our guess."""
    given_value = {"apiKey": "k", "clientSecret": "s", "secret": ["a", 5], "passwd": {"x": "y"}, "pwd": "p"}
    masked = {"apiKey": MASK, "clientSecret": MASK, "secret": [MASK, 5], "passwd": {"x": MASK}, "pwd": MASK}
    assert redact(given_value) == masked
    assert redact_keys(given_value) == given_value


def test_keys_that_are_secrets_are_masked_without_losing_a_value() -> None:
    """Two secrets as keys become two different keys."""
    given_value = {TOKENS["github_token"]: 1, TOKENS["hugging_face_token"]: 2, "n": 3}
    assert redact(given_value) == {MASK: 1, f"{MASK} (2)": 2, "n": 3}


def test_values_alone_can_be_redacted() -> None:
    """`redact_values` does not look at the names of keys."""
    assert redact_values({"api_key": "abc", "m": "password=x"}) == {"api_key": "abc", "m": f"password={MASK}"}


class Payload(Struct, frozen=True):
    error: str = ""
    token: str | None = None
    count: int = 0


def test_structs_are_redacted_like_objects() -> None:
    """A typed payload keeps its type, and is the same object when nothing changed."""
    clean = Payload(error="fine", count=3)
    assert redact(clean) is clean
    assert redact(Payload("password=x", "abc", 3)) == Payload(f"password={MASK}", MASK, 3)


def test_endless_nesting_is_a_clear_error() -> None:
    """A value that contains itself can't be written anyway."""
    endless: list[Any] = []
    endless.append(endless)
    for function in (redact, redact_keys, compact_parameters):
        with pytest.raises(ValueError, match="nested too deeply"):
            function(endless)


# --- literal secrets ---


def test_literal_secrets_are_masked_everywhere() -> None:
    """In texts and keys, the longest first; too short ones are ignored."""
    secrets = ("geheim-1", "geheim-1-lang", "abc", "")
    value = {"m": "x geheim-1-lang y geheim-1 abc", "geheim-1": [("geheim-1",)]}
    assert redact(value, secrets) == {"m": f"x {MASK} y {MASK} abc", MASK: [[MASK]]}
    assert redact_text("a geheim-1", secrets) == f"a {MASK}"


def test_one_redactor_serves_many_values() -> None:
    """What it remembers never hides a secret, however many strings and keys pass through."""
    redactor = Redactor(["geheim-wort"])
    for number in range(10_000):
        assert redactor.redact({f"k{number}": f"text {number}"}) == {f"k{number}": f"text {number}"}
    assert redactor.redact({"k1": "geheim-wort", "token": "t"}) == {"k1": MASK, "token": MASK}


def test_values_of_secret_variables_are_collected() -> None:
    """By name, in a stable order; short values, switches, references, paths and counts are not."""
    environ = {
        "OPENAI_API_KEY": "key-openai-1",
        "HF_TOKEN": "token-hf",
        "DB_PASSWORD": "correct horse",
        "MY_KEY": "my-key-12",
        "API_KEYS": "list-key-1,list-key-2",
        "DATABASE_URL": "postgres://u:url-password@h/d",
        "SHORT_TOKEN": "abc",
        "MAX_TOKENS": "1234567890",
        "HF_TOKEN_PATH": "/root/.cache/token",
        "TOKENIZERS_PARALLELISM": "falsefalse",
        "GOOGLE_APPLICATION_CREDENTIALS": "/etc/keys/google.json",
        "A_TOKEN": "${OTHER_TOKEN}",
        "PATH": "/usr/bin:/bin",
        "GPG_KEY": "7169605F62C751356D054A26A821E680E5FA6305",
        "PASSWORD_MODE": "interactive",
        "HOME": "/root/long",
    }
    expected = {
        "key-openai-1",
        "token-hf",
        "correct horse",
        "my-key-12",
        "list-key-1",
        "list-key-2",
        "list-key-1,list-key-2",
        "url-password",
    }
    values = secret_environment_values(environ)
    assert set(values) == expected
    assert list(values) == sorted(values, key=lambda value: (-len(value), value))
    assert values == secret_environment_values(dict(reversed(environ.items())))


def test_ordinary_names_announce_no_secret() -> None:
    """The words that evaluations use all the time."""
    ordinary = "max_tokens eos_token tokens tokenizer sort_key request_key monkey secretary GPG_KEY keys wrap_api_key"
    assert [name for name in ordinary.split() if is_secret_name(name)] == []


# --- properties ---

fragments = st.sampled_from(
    [
        *TOKENS.values(),
        *(text for pair in SECRET_TEXTS.values() for text in pair),
        *HARMLESS,
        MASK,
        "*",
        "***",
        "${X}",
        "api_key",
        "token",
        "password",
        "Authorization",
        "headers",
        "env",
        "secret",
        "--token",
        "-u",
        "curl",
        "basic ",
        "bearer ",
        "://",
        "@",
        "=",
        ":",
        ": ",
        " = ",
        '"',
        "'",
        "\\",
        '\\"',
        "{",
        "}",
        "[",
        "]",
        ",",
        " ",
        "\n",
        "&",
        "?",
        "<",
        ">",
        "key",
        "abc",
        "x1",
        "sk-",
        "eyJ",
        "Q~",
        "geheim-1",
    ]
)
texts = st.one_of(st.text(max_size=40), st.lists(fragments, max_size=12).map("".join))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)
SECRETS = ("geheim-1", "ab*c", "****x")


@settings(max_examples=400, deadline=None)
@given(texts)
@example("api_key=abc****x token: ab*c")
@example('"env":{"a":"b"}"env":{\'')
def test_redacting_a_text_twice_changes_nothing_more(text: str) -> None:
    """Idempotent, and what is left holds no secret of its own."""
    once = redact_text(text, SECRETS)
    assert redact_text(once, SECRETS) is once
    assert find_secrets(redact_text(text)) == []
    assert (once == text) == (once is text)


@settings(max_examples=400, deadline=None)
@given(texts)
def test_found_secrets_are_ordered_spans_of_the_text(text: str) -> None:
    """Ordered, not empty, without overlaps, inside the text: a caller can point at each."""
    end = 0
    for match in find_secrets(text):
        assert end <= match.start < match.end <= len(text)
        end = match.end


@settings(max_examples=300, deadline=None)
@given(values)
def test_redacting_a_value_twice_changes_nothing_more(value: Any) -> None:
    """Idempotent for any JSON, and an unchanged value is the same object."""
    once = redact(value, SECRETS)
    assert redact(once, SECRETS) is once
    assert (once == value) or (once is not value)
    assert redact_keys(redact_keys(value)) == redact_keys(value)


# --- size ---

HOSTILE = [
    "a",
    '{"',
    "sk-",
    "eyJ",
    "token=",
    "key=",
    "://a@",
    "-----BEGIN PRIVATE KEY-----",
    '"env":{',
    'key=\\"',
    "password: ",
    "key=${",
    "bearer ",
    "basic ",
    "?key=",
    "curl -u ",
    "'",
    '\\"',
    "api_key='",
    "token: token: ",
    "SG.",
    "Q~",
    "İ=",
    "ghp_",
    "a_",
    "-key=",
    '"headers":["',
    "xox",
    ".atlasv1.",
    "0:AA",
    "*",
    "key=<",
    "://",
    "{key:",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_no_text_is_a_trap(piece: str) -> None:
    """A megabyte of a piece that begins many matches: rules that scanned again at each start would never end here."""
    text = piece * (1_000_000 // len(piece))
    redacted = redact_text(text)
    assert redact_text(redacted) is redacted


@pytest.mark.parametrize("piece", ["a", '{"'])
def test_ten_megabytes_are_no_problem(piece: str) -> None:
    """The size of a model's output that went wrong."""
    text = piece * (10_000_000 // len(piece))
    assert redact_text(text) is text
    assert redact({"output": text})["output"] is text


def test_a_secret_is_found_in_a_large_text() -> None:
    """At its place, behind megabytes of words."""
    dice = random.Random(3)
    words = " ".join(dice.choices(["retry", "task-1", "max_tokens=5", "done:", "x=1"], k=200_000))
    (match,) = find_secrets(f"{words} {TOKENS['github_token']} {words}")
    assert match == ("github_token", len(words) + 1, len(words) + 1 + len(TOKENS["github_token"]))


# --- values of classes of their own ---


class Severity(str, Enum):  # noqa: UP042  (the older spelling, whose members give `Severity.ERROR` as their text)
    ERROR = "error"
    KEY = "api_key"


class Level(IntEnum):
    HIGH = 3


class Colour(Enum):
    RED = "red"


class Words(str):
    def __str__(self) -> str:
        return "words of its own"


class Count(int):
    pass


class Ratio(float):
    pass


class Table(dict[str, Any]):
    pass


class Rows(list[Any]):
    pass


@dataclass
class Call:
    url: str
    api_key: str = ""


class Model:
    """What a pydantic model offers to an encoder."""

    def __init__(self, **members: Any) -> None:
        self.members = members

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return self.members


OWN_CLASSES: list[tuple[Any, Any]] = [
    (Severity.ERROR, "error"),
    (Level.HIGH, 3),
    (Colour.RED, "red"),
    (Words("plain"), "plain"),
    (Count(4), 4),
    (Ratio(1.5), 1.5),
    (Table(a=1), {"a": 1}),
    (Rows([1, "x"]), [1, "x"]),
    (PurePosixPath("/data/x"), "/data/x"),
    (datetime(2026, 1, 2, 3, 4), "2026-01-02T03:04:00"),
    (Call("http://host"), {"url": "http://host", "api_key": ""}),
    (Model(n=1, text="fine"), {"n": 1, "text": "fine"}),
]


@pytest.mark.parametrize(("value", "written"), OWN_CLASSES, ids=lambda value: type(value).__name__)
def test_an_object_without_secrets_comes_back_as_itself_and_is_written_as_an_encoder_writes_it(
    value: Any, written: Any
) -> None:
    """Members of enumerations, subclasses and models keep their values on the way into a stream."""
    for around in (value, [value], {"x": value}, (1, {"y": [value]})):
        assert redact(around) is around
        assert Redactor(["geheim-1"]).redact(around) is around
    assert redact_keys({"x": value})["x"] == (written if hasattr(value, "__fspath__") else value)
    event = Masker(()).mask(PhaseChanged(run_id="r", task_id="t", phase="p", payload={"x": value}))
    assert json.loads(encode(event))["payload"] == {"x": written}
    assert (
        json.loads(encode(structs.replace(event, payload={"x": value, "nan": float("nan")})))["payload"]["x"] == written
    )
    assert json.loads(Speller("r").speller()(event) + b"}")["payload"] == {"x": written}


def test_members_of_enumerations_are_keys_by_their_values() -> None:
    """As a JSON encoder writes them, and judged by that name."""
    value = {Severity.ERROR: 1, Level.HIGH: 2}
    assert redact(value) is value
    assert json.dumps(redact_keys(value)) == json.dumps({"error": 1, "3": 2})
    assert json.dumps(redact({Severity.KEY: "abc"})) == json.dumps({"api_key": MASK})
    assert redact_keys({Severity.KEY: "abc"}) == compact_parameters({Severity.KEY: "abc"}) == {"api_key": MASK}


class Hidden(Enum):
    TOKEN = TOKENS["github_token"]


@pytest.mark.parametrize(
    "value",
    [
        Words(TOKENS["github_token"]),
        Hidden.TOKEN,
        PurePosixPath("/data") / TOKENS["github_token"],
        Call("x", TOKENS["github_token"]),
        Call("https://user:" + TOKENS["github_token"] + "@host"),
        Model(text=TOKENS["github_token"]),
        TOKENS["github_token"].encode(),
        Rows([TOKENS["github_token"]]),
        Table(x=TOKENS["github_token"]),
        ValueError(TOKENS["github_token"]),
        {TOKENS["github_token"]},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_written_of_an_object_of_a_class_of_its_own_is_masked(value: Any) -> None:
    """Whatever an encoder makes of it: fields, a text, or the text that `str` gives."""
    written = json.dumps(redact({"x": value}), default=str)
    assert TOKENS["github_token"][-20:] not in written
    assert MASK in written
