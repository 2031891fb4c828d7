"""Credentials that show what they are by their own form: the token shapes of well-known issuers.

A shape needs no context: `ghp_` and 36 letters are a GitHub token wherever they stand. Lengths are looser than today's
(issuers lengthen their tokens) but long enough that hashes, UUIDs, task ids and words are left alone; what has no
telling prefix is left to the rules that look at names. Facts about the shapes are their issuers' documentation.

Every pattern begins with a literal, its repeats are bounded, possessive or last, and no failed start is retried inside
one run of characters: time is linear in the text. Pure.
"""

import re
from collections.abc import Callable
from typing import NamedTuple


class Shape(NamedTuple):
    """`needle` is a literal in every match; group 1, or the whole match, is the secret; `accept` may refuse it."""

    kind: str
    needle: str
    pattern: re.Pattern[str]
    accept: Callable[[str], bool] | None = None


def _token(kind: str, needle: str, rest: str, accept: Callable[[str], bool] | None = None) -> Shape:
    # Not in the middle of a word: `task-1` holds no `sk-`.
    return Shape(kind, needle, re.compile(rf"{re.escape(needle)}(?<![A-Za-z0-9]{re.escape(needle)}){rest}"), accept)


def _anywhere(kind: str, needle: str, pattern: str, accept: Callable[[str], bool] | None = None) -> Shape:
    return Shape(kind, needle, re.compile(pattern), accept)


def is_mixed(secret: str) -> bool:
    """Are there both digits and letters in it? Words seldom have both, keys nearly always."""
    return any(map(str.isdigit, secret)) and any(map(str.isalpha, secret))


def _is_key_not_name(secret: str) -> bool:
    # `sk-learn-pipelines-7` is a name, `sk-test-4f0c2d91ab37` a key: its last part is long, or mixed.
    part = secret.rsplit("-", 1)[-1]
    return len(part) >= 20 or is_mixed(part)


_KEY_BODY = re.compile(r"KEY(?: BLOCK)?-----(?:\\+[rn]|\s){0,8}(?:[A-Za-z0-9+/]{16}|[A-Za-z-]{4,20}: )")


def _has_key_body(block: str) -> bool:
    return _KEY_BODY.search(block) is not None


_A = "[A-Za-z0-9]"
_W = "[A-Za-z0-9_-]"
_U = "[A-Za-z0-9_%./+=-]"

_MODEL_PROVIDERS = (
    _token("anthropic_key", "sk-ant-", rf"{_W}{{8,}}"),
    _token("openai_key", "sk-", rf"(?:proj|svcacct|admin|service|or-v1|lf|litellm)-{_W}{{12,}}"),
    _token("api_key", "sk-", rf"(?:{_A}{{1,20}}-){{0,3}}[A-Za-z0-9_]{{12,}}", _is_key_not_name),
    _token("hugging_face_token", "hf_", rf"{_A}{{20,}}"),
    _token("hugging_face_token", "api_org_", rf"{_A}{{30,}}"),
    _token("google_api_key", "AIza", rf"{_W}{{30,}}"),
    _token("groq_key", "gsk_", rf"{_A}{{30,}}"),
    _token("xai_key", "xai-", rf"{_A}{{40,}}"),
    _token("replicate_token", "r8_", rf"{_A}{{30,}}"),
    _token("perplexity_key", "pplx-", rf"{_A}{{30,}}"),
    _token("nvidia_key", "nvapi-", rf"{_W}{{30,}}"),
    _token("fireworks_key", "fw_", rf"{_A}{{20,}}", is_mixed),
    _token("together_key", "tgp_v1_", rf"{_W}{{30,}}"),
    _token("cerebras_key", "csk-", rf"{_A}{{30,}}"),
    _token("tavily_key", "tvly-", rf"{_W}{{20,}}", is_mixed),
    _token("jina_key", "jina_", rf"{_W}{{40,}}"),
    _token("langsmith_key", "lsv2_", rf"(?:pt|sk)_{_A}{{20,}}(?:_{_A}+)?"),
    _token("langfuse_key", "pk-lf-", rf"{_W}{{20,}}"),
    _token("wandb_key", "wandb_v1_", rf"{_W}{{30,}}"),
    _token("e2b_key", "e2b_", "[0-9a-f]{32,}"),
    _token("daytona_key", "dtn_", rf"{_A}{{40,}}"),
)
_CODE_HOSTS = (
    _token("github_token", "gh", rf"[pousr]_{_A}{{20,}}"),
    _token("github_token", "github_pat_", "[A-Za-z0-9_]{20,}"),
    _token("gitlab_token", "gl", rf"(?:pat|dt|rt|rtr|cbt|ptt|soat|ft|imt|agent|oas|ffct|wt)-{_W}{{16,}}(?:\.{_W}+)*"),
    _token("npm_token", "npm_", rf"{_A}{{30,}}"),
    _token("pypi_token", "pypi-", rf"AgE{_W}{{20,}}"),
    _token("rubygems_key", "rubygems_", "[0-9a-f]{32,}"),
    _token("docker_token", "dckr_", rf"(?:pat|oat)_{_W}{{20,}}"),
    _token("atlassian_token", "ATATT3", "[A-Za-z0-9_=-]{40,}"),
)
_CLOUDS = (
    _token("aws_access_key_id", "AKIA", "[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _token("aws_access_key_id", "ASIA", "[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _token("alibaba_access_key_id", "LTAI", rf"{_A}{{12,30}}(?![A-Za-z0-9])", is_mixed),
    _token("tencent_secret_id", "AKID", rf"{_A}{{32,}}"),
    _token("volcengine_access_key_id", "AKLT", rf"{_A}{{20,}}"),
    _token("google_oauth_token", "ya29.", rf"{_W}{{20,}}"),
    _token("google_oauth_secret", "GOCSPX-", rf"{_W}{{20,}}"),
    _anywhere("azure_client_secret", "Q~", r"(?:[A-Za-z0-9_~.]{3}[0-9])Q~[A-Za-z0-9_~.-]{31,}"),
    _token("digitalocean_token", "do", "[opr]_v1_[0-9a-f]{40,}"),
    _token("databricks_token", "dapi", "[0-9a-f]{32}(?:-[0-9])?(?![0-9a-f])"),
    _token("vault_token", "hv", rf"[sbr]\.{_W}{{20,}}"),
    _anywhere("terraform_token", ".atlasv1.", rf"(?:{_A}{{14}})\.atlasv1\.{_W}{{40,}}"),
    _token("tailscale_key", "tskey-", rf"[a-z]+-{_W}{{12,}}"),
    _token("fly_token", "fm2_", "[A-Za-z0-9+/=_-]{40,}"),
    _token("supabase_token", "sbp_", "[0-9a-f]{40,}"),
    _token("planetscale_token", "pscale_", rf"(?:tkn|pw|oauth)_{_W}{{20,}}"),
    _token("pulumi_token", "pul-", "[0-9a-f]{40}"),
    _token("doppler_token", "dp.", rf"(?:pt|st|ct|sa|scim|audit)\.(?:[a-z0-9_-]{{1,40}}\.)?{_A}{{30,}}"),
    _token("age_secret_key", "AGE-SECRET-KEY-1", "[A-Z0-9]{40,}"),
)
_SERVICES = (
    _token("slack_token", "xox", rf"[a-z]-{_W}{{10,}}"),
    _token("slack_token", "xoxe.", rf"xox[bp]-{_W}{{10,}}"),
    _token("slack_token", "xapp-", rf"{_W}{{20,}}"),
    _token("stripe_key", "sk_", "(?:live|test|prod)_[A-Za-z0-9]{10,}"),
    _token("stripe_key", "rk_", "(?:live|test|prod)_[A-Za-z0-9]{10,}"),
    _token("webhook_secret", "whsec_", "[A-Za-z0-9+/=_-]{20,}"),
    _token("sendgrid_key", "SG.", rf"{_W}{{16,80}}\.{_W}{{16,}}"),
    _token("twilio_key", "SK", "[0-9a-f]{32}(?![0-9a-f])"),
    _anywhere("telegram_token", ":AA", rf"(?<![0-9])[0-9]{{8,10}}:AA{_W}{{32,}}"),
    _token("grafana_token", "glsa_", rf"{_A}{{30,}}(?:_[0-9a-fA-F]+)?"),
    _token("grafana_token", "glc_", "[A-Za-z0-9+/=]{32,}"),
    _token("linear_key", "lin_api_", rf"{_A}{{30,}}"),
    _token("notion_token", "ntn_", rf"{_A}{{40,}}"),
    _token("new_relic_key", "NRAK-", "[A-Z0-9]{20,}"),
    _token("postman_key", "PMAK-", rf"{_W}{{40,}}"),
    _token("sentry_token", "sntrys_", "[A-Za-z0-9+/=_]{40,}"),
    _token("sentry_token", "sntryu_", rf"{_A}{{40,}}"),
    _token("shopify_token", "shp", "(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    _token("square_token", "sq0", rf"(?:atp|csp)-{_W}{{20,}}"),
    _token("figma_token", "figd_", rf"{_W}{{30,}}"),
    _anywhere("webhook_url", "hooks.slack", rf"hooks\.slack(?:-gov)?\.com/[a-z]+/({_U}{{16,}})"),
    _anywhere("webhook_url", "/api/webhooks/", rf"/api/webhooks/([0-9]{{8,}}/{_W}{{20,}})"),
    _anywhere("webhook_url", "/webhookb2/", rf"/webhookb2/([A-Za-z0-9@-]{{16,120}}/IncomingWebhook/{_U}+)"),
    _anywhere("webhook_url", "/open-apis/bot/", rf"/open-apis/bot/(?:v2/)?hook/({_W}{{16,}})"),
)
_STANDARDS = (
    # The second look-behind keeps one long run of characters from being tried again at every `eyJ` in it.
    _token("jwt", "eyJ", rf"(?<![_-]eyJ){_W}{{8,}}+\.{_W}{{8,}}+(?:\.{_W}*+){{0,3}}"),
    _anywhere(
        "private_key",
        "PRIVATE KEY",
        r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?:[^-]|-(?!-)){0,16384}+"
        r"(?:-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----)?",
        _has_key_body,
    ),
)

SHAPES: tuple[Shape, ...] = (*_STANDARDS, *_MODEL_PROVIDERS, *_CODE_HOSTS, *_CLOUDS, *_SERVICES)
"""Where two shapes cover the same characters, the first names the kind."""
