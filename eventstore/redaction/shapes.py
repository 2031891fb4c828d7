"""Credentials that show what they are by their own form: the token shapes of well-known issuers.

A shape needs no context: `ghp_` and 36 letters are a GitHub token wherever they stand, also right behind what encoders
and terminals put before a word: `\\n` and other escapes, a colour, `%0A`. Lengths are looser than today's
(issuers lengthen their tokens) but long enough that hashes, UUIDs, task ids and words are left alone; what has no
telling prefix is left to the rules that look at names. Facts about the shapes are their issuers' documentation and the
public rule lists of gitleaks and detect-secrets.

Nearly every pattern begins with a literal, its repeats are bounded, possessive or last, and no failed start is retried
inside one run of characters: time is linear in the text. Pure.
"""

import re
from collections.abc import Callable
from functools import cached_property


class Shape:
    """`needle` is a literal in every match; group 1, or the whole match, is the secret; `accept` may refuse it.

    An empty needle: the shape has no literal, its matches are words of letters, digits, `_`, `.` and `-` alone.
    Patterns are compiled when they are first needed, which most never are.
    """

    def __init__(
        self, kind: str, needle: str, source: str, accept: Callable[[str], bool] | None = None, body: str = ""
    ) -> None:
        self.kind, self.needle, self.accept = kind, needle, accept
        self.body = body
        """What follows the needle, where that is known: a text whose words hold no needle and body has no match."""
        self._source = source

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self._source)

    @cached_property
    def word(self) -> re.Pattern[str]:
        """Found, in the words of a text, wherever `pattern` is found in the text."""
        return re.compile(re.escape(self.needle) + self.body)


_ESCAPES = (
    r"\\[abefnrtv0]",  # in JSON, in a program's string, at any depth
    r"\\u[0-9a-fA-F]{4}",
    r"\\x[0-9a-fA-F]{2}",
    r"\\[0-3][0-7]{2}",
    r"%[0-9a-fA-F]{2}",
    r"%25[0-9a-fA-F]{2}",
    r"=(?:0[AD9]|20|3D)",  # quoted-printable
    *(rf"\[[0-9;]{{{count}}}[mKJH]" for count in range(14)),  # a terminal's colour, whatever became of its ESC
    r"[\x1bbBe3]\(B",
)
"""What may stand before a token although it ends with a letter or a digit; each of one width, for a look-behind."""


def behind(needle: str, excluded: str = "A-Za-z0-9") -> str:
    """Return a pattern for the literal `needle` where a word begins: `task-1` holds no `sk-`, `\\nsk-` does."""
    literal = re.escape(needle)
    escapes = "|".join(rf"(?<={escape}{literal})" for escape in _ESCAPES)
    return rf"{literal}(?:(?<![{excluded}]{literal})|{escapes})"


def _token(kind: str, needle: str, rest: str, accept: Callable[[str], bool] | None = None) -> Shape:
    return Shape(kind, needle, behind(needle) + rest, accept, rest)


def _tokens(kind: str, needles: str, rest: str, accept: Callable[[str], bool] | None = None) -> tuple[Shape, ...]:
    return tuple(_token(kind, needle, rest, accept) for needle in needles.split())


def _apart(kind: str, needle: str, rest: str, accept: Callable[[str], bool] | None = None) -> Shape:
    """The same for a prefix that is also an ordinary part of names, as in `cache-key-…`."""
    return Shape(kind, needle, behind(needle, "A-Za-z0-9_.-") + rest, accept, rest)


def _word(kind: str, body: str, accept: Callable[[str], bool] | None = None) -> Shape:
    """A shape without a prefix: it must be the whole of a word."""
    escapes = "|".join(rf"(?<={escape})" for escape in _ESCAPES)
    return Shape(kind, "", rf"(?:(?<![A-Za-z0-9_.-])|{escapes}){body}(?![A-Za-z0-9_-]|\.[A-Za-z0-9])", accept, body)


def _anywhere(kind: str, needle: str, pattern: str, accept: Callable[[str], bool] | None = None) -> Shape:
    return Shape(kind, needle, pattern, accept)


def is_mixed(secret: str) -> bool:
    """Are there both digits and letters in it? Words seldom have both, keys nearly always."""
    return any(map(str.isdigit, secret)) and any(map(str.isalpha, secret))


def is_random(secret: str) -> bool:
    """Are there digits, capitals and small letters in it?"""
    return any(map(str.isdigit, secret)) and any(map(str.isupper, secret)) and any(map(str.islower, secret))


def _is_key_not_name(secret: str) -> bool:
    # `sk-learn-pipelines-7` is a name, `sk-test-4f0c2d91ab37` a key: its last part is long, or mixed.
    part = secret.rsplit("-", 1)[-1]
    return len(part) >= 20 or is_mixed(part)


_KEY_BODY = re.compile(r"KEY(?: BLOCK)?-----(?:\\+[rn]|[\s\"',>|\\]){0,40}(?:[A-Za-z0-9+/]{16}|[A-Za-z-]{4,20}: )")


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
    _token("elevenlabs_key", "sk_", "[0-9a-f]{40,}"),
    _apart("modal_token", "ak-", rf"{_A}{{20,30}}(?![A-Za-z0-9_-])", is_random),
    _apart("modal_token", "as-", rf"{_A}{{20,30}}(?![A-Za-z0-9_-])", is_random),
    _token("firecrawl_key", "fc-", "[0-9a-f]{32}(?![0-9a-f])"),
    _token("browserbase_key", "bb_", rf"(?:live|test)_{_W}{{20,}}"),
    _token("pinecone_key", "pcsk_", rf"{_W}{{30,}}"),
    _token("anyscale_key", "esecret_", rf"{_A}{{20,}}"),
    _token("runpod_key", "rpa_", rf"{_A}{{30,}}"),
    _token("voyage_key", "pa-", rf"{_W}{{40,}}", is_random),
    _token("brave_key", "BSA", rf"{_W}{{27,29}}(?![A-Za-z0-9_-])", is_random),
    _token("helicone_key", "pk-helicone-", rf"{_W}{{16,}}"),
    _token("langsmith_key", "ls__", "[0-9a-f]{32,}"),
    _token("featherless_key", "rc_", "[0-9a-f]{60,}"),
    _word("zhipu_key", r"[0-9a-f]{32}\.[A-Za-z0-9]{16}", is_random),
)
_CODE_HOSTS = (
    *_tokens("github_token", "ghp_ gho_ ghu_ ghs_ ghr_", rf"{_A}{{20,}}"),
    _token("github_token", "github_pat_", "[A-Za-z0-9_]{20,}"),
    *_tokens(
        "gitlab_token",
        "glpat- gldt- glrt- glrtr- glcbt- glptt- glsoat- glft- glimt- glagent- gloas- glffct- glwt-",
        rf"{_W}{{16,}}(?:\.{_W}+)*",
    ),
    _token("npm_token", "npm_", rf"{_A}{{30,}}"),
    _token("pypi_token", "pypi-", rf"AgE{_W}{{20,}}"),
    _token("rubygems_key", "rubygems_", "[0-9a-f]{32,}"),
    *_tokens("docker_token", "dckr_pat_ dckr_oat_", rf"{_W}{{20,}}"),
    _token("gitlab_token", "GR1348941", rf"{_W}{{20,}}"),
    _token("atlassian_token", "ATATT3", "[A-Za-z0-9_=-]{40,}"),
    _token("atlassian_token", "ATCTT3", "[A-Za-z0-9_=-]{40,}"),
    _token("bitbucket_token", "ATBB", rf"{_A}{{28,}}", is_random),
    _token("sourcegraph_token", "sgp_", "(?:(?:[0-9a-fA-F]{16}|local)_)?[0-9a-fA-F]{40}"),
    *_tokens("sonar_token", "squ_ sqp_ sqa_", "[0-9a-f]{40}"),
    _token("clojars_token", "CLOJARS_", "[0-9a-fA-F]{60}"),
    _token("clojars_token", "CLOJARS_", rf"{_A}{{60}}"),
    _token("artifactory_key", "AKCp", rf"{_A}{{60,}}"),
    _token("artifactory_key", "cmVmd", rf"{_A}{{59}}(?![A-Za-z0-9])", is_mixed),
    _token("octopus_key", "API-", "[A-Z0-9]{26,}(?![A-Za-z0-9])", is_mixed),
    _token("prefect_key", "pnu_", rf"{_A}{{36}}"),
    _token("readme_key", "rdme_", "[a-z0-9]{60,}"),
    _token("snyk_token", "snyk_", rf"(?:uat|sat)\.{_A}{{8}}\.{_W}{{20,}}"),
    _token("infracost_key", "ico-", rf"{_A}{{32}}(?![A-Za-z0-9])", is_mixed),
    _token("intra42_secret", "s-s4t2", "(?:ud|af)-[0-9a-f]{60,}"),
    _word("harness_key", rf"[ps]at\.{_W}{{22}}\.[A-Za-z0-9]{{24}}\.[A-Za-z0-9]{{20}}"),
)
_CLOUDS = (
    _token("aws_access_key_id", "AKIA", "[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _token("aws_access_key_id", "ASIA", "[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _token("aws_access_key_id", "ABIA", "[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _token("aws_access_key_id", "ACCA", "[A-Z0-9]{16}(?![A-Za-z0-9])", is_mixed),
    _token("aws_access_key_id", "A3T", "[A-Z0-9]{17}(?![A-Za-z0-9])"),
    _token("bedrock_key", "ABSK", "[A-Za-z0-9+/]{80,}={0,2}"),
    _token("bedrock_key", "bedrock-api-key-", "[A-Za-z0-9+/=]{20,}"),
    _token("alibaba_access_key_id", "LTAI", rf"{_A}{{12,30}}(?![A-Za-z0-9])", is_mixed),
    _token("tencent_secret_id", "AKID", rf"{_A}{{32,}}"),
    _token("volcengine_access_key_id", "AKLT", rf"{_A}{{20,}}"),
    _token("google_oauth_token", "ya29.", rf"{_W}{{20,}}"),
    _token("google_oauth_secret", "GOCSPX-", rf"{_W}{{20,}}"),
    _token("google_refresh_token", "1//0", rf"{_W}{{28,}}"),
    _token("google_oauth_code", "4/0A", rf"{_W}{{30,}}"),
    *_tokens("cloudflare_token", "cfut_ cfat_ cfk_", rf"{_A}{{30,}}"),
    _token("cloudflare_token", "v1.0-", "[0-9a-f]{24}-[0-9a-f]{100,}"),
    _token("heroku_key", "HRKU-", rf"{_W}{{30,}}"),
    *_tokens("vercel_token", "vcp_ vca_ vck_ vci_ vcr_ vcs_", rf"{_A}{{24,}}", is_random),
    _token("netlify_token", "nfp_", rf"{_A}{{30,}}"),
    _token("render_key", "rnd_", rf"{_A}{{20,}}", is_mixed),
    _token("neon_key", "napi_", rf"{_A}{{30,}}"),
    _token("yandex_token", "AQVN", rf"{_W}{{30,}}", is_mixed),
    _token("yandex_token", "t1.", rf"{_W}{{6,}}={{0,2}}\.{_W}{{80,}}"),
    _token("yandex_token", "YC", rf"{_W}{{38}}(?![A-Za-z0-9_-])", is_random),
    _token("openshift_token", "sha256~", rf"{_W}{{40,}}"),
    _token("scalingo_token", "tk-us-", rf"{_W}{{40,}}"),
    _token("clickhouse_key", "4b1d", rf"{_A}{{38}}(?![A-Za-z0-9])", is_random),
    _token("one_password_key", "ops_eyJ", "[A-Za-z0-9+/=_-]{40,}"),
    _token("one_password_key", "A3-", "[A-Z0-9]{6}-[A-Z0-9]{6}-?[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}"),
    _token("one_password_key", "A3-", "[A-Z0-9]{6}-[A-Z0-9]{11}-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}"),
    _token("dynatrace_token", "dt0", rf"[a-z][0-9]{{2}}\.{_A}{{20,}}\.{_A}{{50,}}"),
    _word("vault_token", r"s\.[A-Za-z0-9]{24}", is_random),
    _anywhere("azure_client_secret", "Q~", r"(?:[A-Za-z0-9_~.]{3}[0-9])Q~[A-Za-z0-9_~.-]{31,}"),
    *_tokens("digitalocean_token", "doo_v1_ dop_v1_ dor_v1_", "[0-9a-f]{40,}"),
    _token("databricks_token", "dapi", "[0-9a-f]{32}(?:-[0-9])?(?![0-9a-f])"),
    *_tokens("vault_token", "hvs. hvb. hvr.", rf"{_W}{{20,}}"),
    _anywhere("terraform_token", ".atlasv1.", rf"(?:{_A}{{14}})\.atlasv1\.{_W}{{40,}}"),
    _token("tailscale_key", "tskey-", rf"[a-z]+-{_W}{{12,}}"),
    _token("fly_token", "fm2_", "[A-Za-z0-9+/=_-]{40,}"),
    _token("fly_token", "fm1", "[ar]_[A-Za-z0-9+/=_-]{40,}"),
    _token("fly_token", "fo1_", rf"{_W}{{40,}}"),
    _token("supabase_token", "sbp_", "[0-9a-f]{40,}"),
    _token("supabase_token", "sb_secret_", rf"{_W}{{20,}}"),
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
    _anywhere("telegram_token", ":AA", rf"[0-9]{{8,10}}:AA{_W}{{32,}}"),
    _token("grafana_token", "glsa_", rf"{_A}{{30,}}(?:_[0-9a-fA-F]+)?"),
    _token("grafana_token", "glc_", "[A-Za-z0-9+/=]{32,}"),
    _token("linear_key", "lin_api_", rf"{_A}{{30,}}"),
    _token("notion_token", "ntn_", rf"{_A}{{40,}}"),
    _token("new_relic_key", "NRAK-", "[A-Z0-9]{20,}"),
    _token("postman_key", "PMAK-", rf"{_W}{{40,}}"),
    _token("sentry_token", "sntrys_", "[A-Za-z0-9+/=_]{40,}"),
    _token("sentry_token", "sntryu_", rf"{_A}{{40,}}"),
    *_tokens("shopify_token", "shpat_ shpca_ shppa_ shpss_", "[0-9a-fA-F]{32}"),
    *_tokens("square_token", "sq0atp- sq0csp-", rf"{_W}{{20,}}"),
    _token("square_token", "EAAA", rf"{_W}{{40,}}", is_random),
    _token("figma_token", "figd_", rf"{_W}{{30,}}"),
    _token("resend_key", "re_", rf"{_A}{{6,12}}_{_A}{{20,}}", is_random),
    _apart("mailgun_key", "key-", "[0-9a-f]{32}(?![A-Za-z0-9-])"),
    _token("airtable_token", "pat", rf"{_A}{{14}}\.[0-9a-f]{{60,}}"),
    _token("adobe_secret", "p8e-", rf"{_A}{{32}}"),
    *_tokens("facebook_token", "EAAM EAAC", rf"{_A}{{80,}}"),
    _token("contentful_token", "CFPAT-", rf"{_W}{{40,}}"),
    _token("duffel_token", "duffel_", rf"(?:test|live)_{_W}{{40,}}"),
    *_tokens("easypost_key", "EZAK EZTK", rf"{_A}{{54}}"),
    _token("flutterwave_key", "FLW", r"(?:SEC|PUB)K(?:_TEST)?-[0-9a-zA-Z]{12,40}(?:-X)?"),
    _token("frameio_token", "fio-u-", rf"{_W}{{60,}}"),
    _token("dropbox_token", "sl.", rf"{_W}{{120,}}"),
    _token("brevo_key", "xkeysib-", "[0-9a-f]{60,}-[A-Za-z0-9]{16}"),
    _token("brevo_key", "xsmtpsib-", "[0-9a-f]{60,}-[A-Za-z0-9]{16}"),
    _token("new_relic_key", "NRII-", "[A-Za-z0-9_-]{32}"),
    _token("new_relic_key", "NRJS-", "[0-9a-f]{19}"),
    _token("posthog_key", "phx_", rf"{_A}{{30,}}"),
    _token("plaid_token", "access-", r"(?:sandbox|development|production)-[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"),
    _token("notion_token", "secret_", rf"{_A}{{40,}}", is_random),
    _token("settlemint_token", "sm_", rf"[aps]at_{_A}{{16,}}"),
    _token("shippo_token", "shippo_", "(?:live|test)_[0-9a-fA-F]{40}"),
    _token("typeform_token", "tfp_", r"[A-Za-z0-9_.=-]{40,}"),
    _token("defined_networking_key", "dnkey-", rf"{_W}{{26}}-{_W}{{40,}}"),
    _token("gocardless_token", "live_", rf"{_W}{{40}}(?![A-Za-z0-9_-])", is_random),
    _token("lob_key", "live_", "[0-9a-f]{35}(?![A-Za-z0-9_-])"),
    _token("lob_key", "test_", "[0-9a-f]{35}(?![A-Za-z0-9_-])"),
    _token("authress_key", "sc_", rf"[a-z0-9]{{5,30}}\.[a-z0-9]{{4,6}}\.acc[_-]{_W}{{10,32}}\.[A-Za-z0-9+/_=-]{{30,}}"),
    _token(
        "authress_key",
        "authress_",
        rf"[a-z0-9]{{5,30}}\.[a-z0-9]{{4,6}}\.acc[_-]{_W}{{10,32}}\.[A-Za-z0-9+/_=-]{{30,}}",
    ),
    _anywhere("maxmind_key", "_mmk", r"[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk(?![A-Za-z0-9])"),
    _anywhere("gitlab_token", "_gitlab_session=", "_gitlab_session=([0-9a-z]{32})"),
    _word("mailchimp_key", r"[0-9a-f]{32}-us[0-9]{1,2}"),
    _word("discord_token", rf"[MNO]{_W}{{23,25}}\.{_W}{{6}}\.{_W}{{27,40}}", is_random),
    _word("mailgun_key", r"[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}"),
    _anywhere("webhook_url", "hooks.slack", rf"hooks\.slack(?:-gov)?\.com/[a-z]+/({_U}{{16,}})"),
    _anywhere("webhook_url", "/webhook", rf"/api/webhooks/([0-9]{{8,}}/{_W}{{20,}})"),
    _anywhere("webhook_url", "/webhook", rf"/webhookb2/([A-Za-z0-9@-]{{16,120}}/IncomingWebhook/{_U}+)"),
    _anywhere("webhook_url", "/open-apis/bot/", rf"/open-apis/bot/(?:v2/)?hook/({_W}{{16,}})"),
)
_STANDARDS = (
    # The second look-behind keeps one long run of characters from being tried again at every `eyJ` in it.
    _token("jwt", "ZXlK", "[A-Za-z0-9+/]{60,}", is_random),
    _anywhere("jwt", "eyJ", behind("eyJ") + rf"(?<![_-]eyJ){_W}{{8,}}+\.{_W}{{8,}}+(?:\.{_W}*+){{0,3}}"),
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
