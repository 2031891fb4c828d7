"""Write `keys.jsonl.xz`: what AgentCompass 1.0.1 itself makes of generated parameter objects.

Run with a Python that has `agentcompass==1.0.1` (Python 3.12): `python tests/data/redaction/make_golden.py`. The seed is
fixed, so the same file comes out. Each line: {"in": value, "keys": as a stored plan, "params": as in params.json,
"request": as the request of run_info.json}; a member equal to `in` is left out.
"""

import json
import lzma
import random
from pathlib import Path

from agentcompass.runtime.config import redact_secrets
from agentcompass.runtime.results.store import RunStore

COUNT = 2000
PLAIN = """model id base_url params temperature max_tokens tokens_used prompt_tokens top_p seed name value values metrics
    accuracy sha256 request request_key sort_key primary-key eos_token tokens keys keyword secretary monkey environment
    environments setup resources network_policy allowed_hosts 0 key secret passwd apikey apiKey tokenid _key""".split()
SENSITIVE = """api_key API_KEY api-key Api.Key x-api-key token TOKEN token_id Token-Id password jwt id_jwt db_password
    cookie Set-Cookie authorization Proxy-Authorization aksk client_secret access_token wrap_api_key wrap-api-key
    WRAP_API_KEY __token__ --password-- _api_key api_key_ key_ a_key_b my\u212a_\u212aey \u0130d_token""".split()
CONTAINERS = """headers Headers HEADERS auth authentication credentials env ENV env_variables run_env_variables
    evaluation_env_variables evaluation-environment-env-variables extra_headers env_vars _env""".split()
SPACED = [
    " token ",
    "api key",
    "set cookie",
    "",
    "_",
    "__",
    "\ttoken\n",
    "token\u00a0",
    "tôken",
    "秘密_key",
    "é_token_é",
]
TEXTS = ["", "x", "hunter2", "********", "${API_KEY}", " ${API_KEY} ", "${API_KEY}x", "${}", "${1A}", "$API_KEY", "${é}",
         "${A}\n", "sk-0123456789abcdef", "https://user:pass@host/", "\u2028", "None"]  # fmt: skip
OTHERS = [None, None, True, False, 0, 1, -1.5, 1e300, [], {}]


def key(dice: random.Random) -> str:
    kind = dice.random()
    if kind < 0.45:
        name = dice.choice(PLAIN)
    elif kind < 0.75:
        name = dice.choice(SENSITIVE)
    elif kind < 0.93:
        name = dice.choice(CONTAINERS)
    else:
        return dice.choice(SPACED)
    return ("_" + name) if dice.random() < 0.06 else name


def value(dice: random.Random, depth: int) -> object:
    kind = dice.random()
    if depth > 0 and kind < 0.4:
        return {key(dice): value(dice, depth - 1) for _ in range(dice.randrange(5))}
    if depth > 0 and kind < 0.55:
        return [value(dice, depth - 1) for _ in range(dice.randrange(4))]
    return dice.choice(TEXTS) if kind < 0.8 else dice.choice(OTHERS)


def main() -> None:
    dice = random.Random(101)
    store = RunStore.__new__(RunStore)
    lines = []
    for _ in range(COUNT):
        given = {key(dice): value(dice, 4) for _ in range(dice.randrange(1, 6))}
        params = store._sanitize_param_value(given)
        results = {"keys": redact_secrets(given), "params": params, "request": redact_secrets(params)}
        # Compared as text: the order of members and the difference of 1 and True count.
        unequal = {name: got for name, got in results.items() if json.dumps(got) != json.dumps(given)}
        lines.append(json.dumps({"in": given, **unequal}, ensure_ascii=False, separators=(",", ":")) + "\n")
    target = Path(__file__).with_name("keys.jsonl.xz")
    target.write_bytes(lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
    print(target.name, len(lines), "cases", target.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
