"""The table of secret shapes: what secrets look like, with samples that each row must and must not match.

Rules of a row:
- A pattern starts with one of its literals and is tried only where that literal occurs, so text without it costs nothing.
- The group `secret`, or else the whole match, is hidden. A row with an unspecific shape (`password: …`) also has `accept`.
- A pattern relies neither on the start nor on the end of a word: keys stand behind `my_`, `\\u003c` and base64. What follows
  a key without a separator (`tail`) is hidden with it.
- A pattern reads a bounded number of characters. One without a limit is tried once for each word (`once`), so every character
  is read a bounded number of times, whatever the text.
- The most specific row comes first: if two rows overlap, the earlier one names the secret.

Samples contain fillers (`<w36>`: 36 word characters, `<h…>` hex, `<d…>` digits, `<u…>` base32, `<b…>` base64), so that this
file contains no secret by its own rules and repository scanners do not report it. The shapes are the prefixes and lengths
that the providers publish. Keys are not checked for validity.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

SECRET = "secret"
PERSONAL = "personal"  # not a secret, but private; searched for on demand only

Accept = Callable[[str], bool]


class Rule(NamedTuple):
    """A row of the table."""

    name: str
    literals: tuple[str, ...]
    pattern: str
    samples: tuple[str, ...]
    near_misses: tuple[str, ...] = ()
    accept: Accept | None = None
    folded: bool = False  # ignore case; literals are in lower case
    before: str = ""  # pattern of the text before the literal that belongs to the secret
    tail: str = ""  # characters behind the secret that are hidden, too
    once: bool = False  # if it does not match in a word, it is not tried again inside of it
    wraps: bool = True  # whether the secret may go on in the next line
    group: str = SECRET


_T = r"\w-"  # the rest of the word, so that no second secret starts inside it
# Between the name of a setting and its value, in code, JSON (escaped or not), YAML, shells and headers.
_IS = r"\\{0,3}[\"'`]?\]?[ \t]{0,8}(?:=>|:=|=|:)[ \t]{0,8}"
_QUOTE = r"(?:\\{0,3}[\"'`])?"

# Placeholders for secrets in manuals and code.
_PLACEHOLDERS = (
    *("xxxx", "***", "...", "<", "${", "{{", "$(", "your", "my-", "my_", "example", "sample", "changeme"),
    *("change-me", "change_me", "placeholder", "dummy", "redacted", "replace", "insert", "process.env", "environ"),
    *("getenv", "secrets.", "vault:", "12345678", "abcdefg", "test-", "test_", "fake", "foobar"),
)
_REPEATED = re.compile(r"(.)\1{5}")
# The pairs of letters that make up most English words and names in code.
_COMMON_PAIRS = frozenset(
    [
        "th",
        "he",
        "in",
        "er",
        "an",
        "re",
        "nd",
        "at",
        "on",
        "nt",
        "ha",
        "es",
        "st",
        "en",
        "ed",
        "to",
        "it",
        "ou",
        "ea",
        "hi",
        "is",
        "or",
        "ti",
        "as",
        "te",
        "et",
        "ng",
        "of",
        "al",
        "de",
        "se",
        "le",
        "sa",
        "si",
        "ar",
        "ve",
        "ra",
        "ld",
        "ur",
        "ro",
        "ri",
        "ne",
        "io",
        "ic",
        "ll",
        "me",
        "ce",
        "co",
        "li",
        "la",
        "ta",
        "el",
        "ch",
        "ma",
        "us",
        "om",
        "ec",
        "pe",
        "ca",
        "ho",
        "lo",
        "tr",
        "di",
        "no",
        "ac",
        "il",
        "un",
        "ee",
        "ge",
        "ut",
        "ly",
        "so",
        "po",
        "ss",
        "ai",
        "ad",
        "em",
        "be",
        "pr",
        "id",
        "mo",
        "op",
        "ag",
        "nc",
        "bl",
        "ex",
        "im",
        "if",
        "tt",
        "ig",
        "sp",
        "ur",
        "pl",
        "ke",
        "ey",
        "oo",
        "ie",
        "am",
        "ap",
        "ab",
        "ub",
        "su",
        "rs",
        "ct",
        "ty",
        "ts",
        "ck",
        "pa",
        "ul",
        "ay",
        "sh",
        "qu",
        "ue",
        "wi",
        "wo",
        "vi",
        "na",
        "da",
        "fi",
        "fo",
        "fr",
        "cl",
        "cr",
        "do",
        "ev",
        "ef",
        "go",
        "gr",
        "ob",
        "od",
        "og",
        "ow",
        "rt",
        "sc",
        "ss",
        "um",
        "up",
        "us",
        "va",
        "wh",
        "ye",
        "ax",
        "by",
        "gi",
        "iv",
        "ki",
        "ir",
        "ct",
        "nd",
        "nk",
        "ok",
        "ot",
        "ru",
        "rd",
        "rm",
        "rn",
        "sy",
        "ua",
        "ud",
    ]
)
_FILLERS = {
    "w": "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
    "b": "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+/",
    "h": "0123456789abcdef",
    "d": "0123456789",
    "u": "234567ABCDEFGHIJKLMNOPQRSTUVWXYZ",
}
_FILLER = re.compile(r"<([a-z])([0-9]+)>")
_PIECES = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_ENOUGH = 96  # characters that are enough to judge a secret, which may be long
_HEXADECIMAL = re.compile(r"(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{32}|(?=[0-9A-F]*[A-F])[0-9A-F]{32}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_WEAK = re.compile("(?:pass(?:w(?:or)?d)?|pwd?|secret|test|admin|root|user|guest|postgres|mysql|redis|mongo)[0-9]*")


def fill(sample: str, pick: Callable[[str, int], str] | None = None) -> str:
    """Return a sample with its fillers replaced; `pick(alphabet, length)` may choose the characters."""

    state = len(sample)

    def mixed(alphabet: str, length: int) -> str:
        nonlocal state
        text = ""
        while len(text) < length:
            state = (state * 1103515245 + 12345) % 2**31
            text += alphabet[(state >> 16) % len(alphabet)]
        return text

    return _FILLER.sub(lambda filler: (pick or mixed)(_FILLERS[filler[1]], int(filler[2])), sample)


def _is_placeholder(text: str) -> bool:
    lower = text.lower()
    return (
        text.startswith(("$", "%s", "%("))
        or any(word in lower for word in _PLACEHOLDERS)
        or _REPEATED.search(text) is not None
    )


def varied(text: str) -> bool:
    """Return whether a text uses many different characters, unlike `xxxx…` or `EXAMPLE`."""
    lower = text[:_ENOUGH].lower()
    return len(set(text[:_ENOUGH])) >= 10 and not any(word in lower for word in ("xxxxxx", "example", "your-", "your_"))


def random_looking(text: str) -> bool:
    """Return whether letters and digits alternate as in random text; words and identifiers have longer pieces."""
    text = text[:_ENOUGH]
    if len(text) < 16 or len(set(text)) < 8 or _UUID.fullmatch(text):  # the quick tests first: texts may be hostile
        return False
    digits, letters = any(map(str.isdigit, text)), any(map(str.isalpha, text))
    pieces = _PIECES.findall(text)
    if not letters or not pieces:
        return False
    is_random = sum(map(len, pieces)) / len(pieces) < (3.0 if digits else 2.2)
    if not is_random and digits:
        is_random = _HEXADECIMAL.search(text) is not None or (
            not text.islower() and not text.isupper() and _is_gibberish(text)
        )
    return is_random and entropy(text) >= 3.0 and not _is_placeholder(text)


def _is_gibberish(text: str) -> bool:
    """Return whether few pairs of letters are common in words."""
    pairs = [pair for pair in map("".join, pairwise(text.lower())) if pair.isalpha()]
    return len(pairs) > 4 and sum(pair in _COMMON_PAIRS for pair in pairs) < 0.42 * len(pairs)


def entropy(text: str) -> float:
    """Return the Shannon entropy of the characters, in bits per character."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())


def strong_password(text: str) -> bool:
    """Return whether a text looks like a password rather than a name in code."""
    kinds = [any(map(test, text)) for test in (str.islower, str.isupper, str.isdigit, lambda c: not c.isalnum())]
    return (
        8 <= len(text) <= 128
        and sum(kinds) >= 3
        and kinds[2]
        and len(set(text)) >= 7
        and not _is_placeholder(text)
        and not _UUID.fullmatch(text)
        and not _DATE.match(text)
        and not re.search(r"[()\[\]{}<>,;]|::|://|->", text)
    )


def _url_password(text: str) -> bool:
    """Return whether a text is a real password of a URL, not an example such as `user:pass@host`."""
    weak = len(text) < 6 or _WEAK.fullmatch(text.lower())
    return not weak and not _is_placeholder(text) and not set(text) & set("{}()|\\,")


def _has_key_material(text: str) -> bool:
    """Return whether a match contains key material; code may mention only the first and last line of a key."""
    run = re.search(r"[A-Za-z0-9+/]{32}", text)
    return run is not None and len(set(run.group())) >= 8


def _has_random_value(text: str) -> bool:
    """Return whether one of the values of a cookie looks random."""
    return any(map(random_looking, re.findall(r"=([^;=\s]{16,256})", text)))


_PEM_LINE = r"(?:(?:\s|\\{1,4}[nrt]|[0-9|>→+\"',:?]){1,32}+[A-Za-z0-9+/=]{16,}+)"
# Up to the end line of the key; if that is missing (truncated output), as far as lines of base64 go.
_PEM = (
    r"BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    rf"(?:(?:[^-]++|-(?!----))*+-----END [A-Z0-9 ]{{0,30}}PRIVATE KEY(?: BLOCK)?-----|{_PEM_LINE}++)"
)
# Tokens of pages of results, and the names of secrets in a vault, are not secret.
_NO_SECRET = "".join(
    rf"(?<!{start})"
    for start in (
        "next",
        "next_",
        "page",
        "page_",
        "continuation",
        "continuation_",
        "starting-",
        "change",
        "publickey",
        ":",
    )
)
# `disk-0a1b…` is the name of a disk.
_NO_WORD = "".join(
    f"(?<!{start})"
    for start in ["ta", "di", "ri", "ma", "de", "du", "hu", "tu", "mu", "fla", "bri", "whi", "kio", "eri"]
)
_PEM_SAMPLE = "-----BEGIN RSA PRIVATE KEY-----\n<b64>\n<b64>\n<b20>=\n-----END RSA PRIVATE KEY-----"
_UUID_SAMPLE = "<h8>-<h4>-<h4>-<h4>-<h12>"
_DISCORD_ID = r"[MNO][DTjz][AEIMQUYcgk][w-z0-5]"  # three digits
_PASSWORD = "passw(?:or)?d|passphrase|pwd"
_KINDS = "api|access|private|account|auth|encryption|signing|master|service"
_KEY = f"(?:{_KINDS})[_-]?key"
_KEYS = tuple(kind + join + "key" for kind in _KINDS.split("|") for join in ("", "_", "-"))
_MORE = r"(?:[_-]?[a-z0-9]{1,16}+){0,2}+"  # `SECRET_KEY_BASE`, `token2`
_FLAG = r"(?<=-)(?:%s)[ \t]{1,4}"  # `--token …`


def _word(
    name: str,
    literals: str,
    shape: str,
    sample: str,
    near_miss: str = "",
    accept: Accept = varied,
    *,
    tail: str = _T,
    once: bool = False,
) -> Rule:
    """A token with a unique prefix; a truncated one does not match."""
    near_misses = (_FILLER.sub(lambda filler: f"<{filler[1]}{int(filler[2]) // 4}>", sample), near_miss)
    return Rule(name, tuple(literals.split()), f"(?:{shape})", (sample,), near_misses, accept, tail=tail, once=once)


def _part(
    name: str, literal: str, pattern: str, sample: str, near_miss: str, accept: Accept = varied, tail: str = _T
) -> Rule:
    """A secret inside something else: a connection string, a URL."""
    return Rule(name, (literal,), pattern, (sample,), (near_miss,), accept, tail=tail)


def _setting(
    name: str, literals: str, value: str, sample: str, near_miss: str, accept: Accept = random_looking
) -> Rule:
    """A value without its own shape, recognized by its name: `MISTRAL_API_KEY=…`."""
    names = literals.split()
    pattern = rf"(?:{'|'.join(names)})[\w.-]{{0,32}}+{_IS}{_QUOTE}(?P<secret>{value})"
    return Rule(name, tuple(names), pattern, (sample,), (near_miss,), accept, folded=True, tail=r"\w+/-")


RULES: tuple[Rule, ...] = (
    # Models
    _word("anthropic-key", "sk-ant-", r"sk-ant-[a-z0-9]{3,10}-[\w-]{32}", "sk-ant-api03-<w93>AA"),
    _word("openrouter-key", "sk-or-", "sk-or-v1-[0-9a-f]{48}", "sk-or-v1-<h64>"),
    _word("openai-key", "sk-proj- sk-svcacct- sk-admin-", r"sk-[a-z]{4,7}-[\w-]{32}", "sk-proj-<w48>", "sk-admin-page"),
    _word("openai-key", "sk-", "sk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}", "sk-<w20>T3BlbkFJ<w20>", "sk-T3BlbkFJ"),
    _word("groq-key", "gsk_", "gsk_[A-Za-z0-9]{40}", "gsk_<w52>", "gsk_model_name"),
    _word("xai-key", "xai-", "xai-[A-Za-z0-9]{60}", "xai-<w80>", "xai-grok-code-fast-1"),
    _word("perplexity-key", "pplx-", "pplx-[A-Za-z0-9]{40}", "pplx-<w48>", "pplx-70b-online"),
    _word("replicate-token", "r8_", "r8_[A-Za-z0-9]{37}", "r8_<w37>"),
    _word("huggingface-token", "hf_", "hf_[A-Za-z0-9]{30}", "hf_<w34>", "hf_hub_download_to_cache_dir"),
    _word("huggingface-token", "api_org_", "api_org_[A-Za-z0-9]{30}", "api_org_<w34>"),
    _word("nvidia-key", "nvapi-", r"nvapi-[\w-]{60}", "nvapi-<w64>", "nvapi-client"),
    _word("tavily-key", "tvly-", r"tvly-[\w-]{28}", "tvly-<w32>", "tvly-search"),
    _word("langsmith-key", "lsv2_", "lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}", "lsv2_pt_<h32>_<h10>"),
    _word(
        "sk-key",
        "sk-",
        rf"{_NO_WORD}sk-[A-Za-z0-9_-]{{24}}",
        "sk-<h32>",
        "sk-learn-linear-model-ridge-2",
        random_looking,
    ),
    _setting("mistral-key", "mistral", "[A-Za-z0-9]{32}", "MISTRAL_API_KEY=<w32>", "mistral-large-2411"),
    # Code hosts and registries
    _word("github-token", "ghp_ gho_ ghu_ ghs_ ghr_", "gh[pousr]_[A-Za-z0-9]{36}", "ghp_<w36>"),
    _word("github-token", "github_pat_", "github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}", "github_pat_<w22>_<w59>"),
    _word(
        "gitlab-token",
        "glpat- gldt- glrt- glptt- glft- glsoat- glcbt- glagent- gloas-",
        r"gl(?:pat|dt|rt|ptt|ft|soat|cbt|agent|oas)-[\w-]{20}(?:\.[\w-]{2,12}){0,2}",
        "glpat-<w20>",
        "glrt-runner-name",
    ),
    _word("npm-token", "npm_", "npm_[A-Za-z0-9]{36}", "npm_<w36>", "npm_config_registry_url_of_the_company"),
    _word("pypi-token", "pypi-", r"pypi-AgE[\w-]{50}", "pypi-AgEIcHlwaS5vcmc<w60>", "pypi-AgEIcHlwaS5vcmc"),
    _word("docker-token", "dckr_", r"dckr_(?:pat|oat)_[\w-]{20}", "dckr_pat_<w27>", "dckr_pat_none"),
    _word("rubygems-key", "rubygems_", "rubygems_[0-9a-f]{48}", "rubygems_<h48>", "rubygems_version"),
    # Clouds
    _word("aws-access-key", "AKIA ASIA", "A[KS]IA[A-Z2-7]{16}", "AKIA<u16>", "AKIAIOSFODNN7EXAMPLE"),
    _setting(
        "aws-secret-key",
        "secret_access_key secretaccesskey secret-access-key aws_secret",
        "[A-Za-z0-9/+]{40}",
        "AWS_SECRET_ACCESS_KEY=<b40>",
        "aws_secret_access_key=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    ),
    _word(
        "aws-bedrock-key", "ABSK", "ABSKQmVkcm9ja[A-Za-z0-9+/]{80}", "ABSKQmVkcm9ja0FQSUtleS<b110>", tail="A-Za-z0-9+/="
    ),
    _word("google-api-key", "AIza", r"AIzaSy[\w-]{33}", "AIzaSy<w33>"),
    _word("google-oauth-secret", "GOCSPX-", r"GOCSPX-[\w-]{28}", "GOCSPX-<w28>"),
    _word("google-oauth-token", "ya29.", r"ya29\.[\w-]{30}", "ya29.<w80>"),
    Rule(
        "gcp-service-account-key",
        ("private_key",),
        rf"private_key\\{{0,3}}[\"']{_IS}\\{{0,3}}[\"'](?P<secret>-----{_PEM})",
        (f'"private_key": "{_PEM_SAMPLE}"'.replace("\n", "\\n").replace("RSA ", ""),),
        ('"private_key": "-----BEGIN PRIVATE KEY-----…"',),
        _has_key_material,
    ),
    _part("azure-key", "AccountKey=", r"AccountKey=(?P<secret>[\w+/]{86}==)", "AccountKey=<b86>==", "AccountKey=;"),
    _part("azure-key", "AccessKey=", r"AccessKey=(?P<secret>[\w+/]{43}=)", "SharedAccessKey=<b43>=", "AccessKey=;"),
    _part("azure-secret", "Q~", r"(?<=[\w~.-]{3}[0-9])Q~[\w~.-]{31}", "abc8Q~<w34>", "8Q~<w34>", tail=r"\w~.-"),
    _word("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_", "do[opr]_v1_[0-9a-f]{64}", "dop_v1_<h64>"),
    _word("cloudflare-key", "v1.0-", r"v1\.0-[0-9a-f]{24}-[0-9a-f]{100}", "v1.0-<h24>-<h146>"),
    _setting("cloudflare-key", "cloudflare cf_api", r"[\w-]{37,40}", "CLOUDFLARE_API_TOKEN=<w40>", "cf_api_token=<h8>"),
    _word("heroku-key", "HRKU-", r"HRKU-[\w-]{36}", "HRKU-AA<w58>", "HRKU-app"),
    _setting(
        "heroku-key",
        "heroku",
        "[0-9a-f]{8}(?:-[0-9a-f]{4,12}){4}",
        f"HEROKU_API_KEY={_UUID_SAMPLE}",
        "heroku=<h8>",
        varied,
    ),
    _word("databricks-token", "dapi", "dapi[0-9a-f]{32}", "dapi<h32>"),
    _word("vault-token", "hvs. hvb.", r"hv[sb]\.[\w-]{24}", "hvs.<w90>", "hvs.length"),
    _word("supabase-key", "sbp_ sb_secret_", r"sbp_[0-9a-f]{40}|sb_secret_[\w-]{20}", "sbp_<h40>"),
    # Messages and payments
    _word("slack-token", "xox", r"xox[a-z](?:\.xox[a-z])?-[0-9]{1,14}-[\w-]{16}", "xoxb-<d12>-<d12>-<w24>"),
    _word("slack-token", "xapp-", r"xapp-[0-9]-[A-Z0-9]{8,14}-[\w-]{40}", "xapp-1-A<u10>-<d13>-<h64>"),
    _part(
        "slack-webhook",
        "hooks.slack.com/",
        r"hooks\.slack\.com/(?:services|workflows|triggers)/(?P<secret>[TE][A-Z0-9]{7,14}/[A-Z0-9]{8,14}/[\w/-]{20})",
        "https://hooks.slack.com/services/T<u9>/B<u9>/<w24>",
        "https://hooks.slack.com/services/T00/B00/short",
        tail=r"\w/-",
    ),
    _part(
        "discord-webhook",
        "/api/webhooks/",
        r"/api/webhooks/(?P<secret>[0-9]{17,20}/[\w-]{60})",
        "https://discord.com/api/webhooks/<d18>/<w68>",
        "https://discord.com/api/webhooks/id/token",
    ),
    Rule(
        "discord-token",
        (".",),
        r"\.[\w-]{6}\.[\w-]{27}",
        ("MTEyMzQ1Njc4OTAxMjM0NTY3.<w6>.<w38>",),
        ("<w24>.<w6>.<w38>",),
        varied,
        before=rf"(?:{_DISCORD_ID}){{5,6}}[\w-]{{0,3}}",  # base64 of the digits of an account
        tail=_T,
    ),
    _part("telegram-token", ":AA", r"(?<=[0-9]{8}):(?P<secret>AA[\w-]{33})", "<d10>:AA<w33>", "x:AA<w33>"),
    _word("twilio-key", "SK", "SK[0-9a-f]{32}", "SK<h32>"),
    _setting("twilio-key", "twilio", "[0-9a-f]{32}", "TWILIO_AUTH_TOKEN=<h32>", "twilio_token=<h8>"),
    _word("sendgrid-key", "SG.", r"SG\.[\w-]{16,24}\.[\w-]{40}", "SG.<w22>.<w43>"),
    _word("mailgun-key", "key-", "key-[0-9a-f]{32}", "key-<h32>"),
    _word("stripe-key", "sk_live_ sk_test_", "sk_(?:live|test)_[A-Za-z0-9]{16}", "sk_live_<w24>", "sk_live_mode"),
    _word("stripe-key", "rk_live_ rk_test_", "rk_(?:live|test)_[A-Za-z0-9]{16}", "rk_live_<w24>", "rk_live_mode"),
    _word("stripe-key", "whsec_", "whsec_[A-Za-z0-9+/]{24}", "whsec_<w32>", "whsec_of_the_page", tail=r"\w+/-"),
    _word("square-token", "sq0atp- sq0csp-", r"sq0(?:atp|csp)-[\w-]{22}", "sq0atp-<w22>"),
    _word("shopify-token", "shpat_ shpca_ shppa_ shpss_", "shp(?:at|ca|pa|ss)_[0-9a-f]{32}", "shpat_<h32>"),
    # Tools
    _word("notion-token", "ntn_", "ntn_[A-Za-z0-9]{40}", "ntn_<w46>"),
    _word("notion-token", "secret_", "secret_[A-Za-z0-9]{43}", "secret_<w43>"),
    _word("linear-key", "lin_api_ lin_oauth_", "lin_(?:api|oauth)_[A-Za-z0-9]{32}", "lin_api_<w40>", "lin_api_client"),
    _word("atlassian-token", "ATATT3", r"ATATT3[\w=-]{100}", "ATATT3<w180>", tail=r"\w=-"),
    _word("figma-token", "figd_", r"figd_[\w-]{38}", "figd_<w40>"),
    _word("postman-key", "PMAK-", "PMAK-[0-9a-f]{24}-[0-9a-f]{34}", "PMAK-<h24>-<h34>"),
    _word("sentry-token", "sntrys_ sntryu_", r"sntry[su]_[\w+/=-]{40}", "sntryu_<h64>", tail=r"\w+/=-"),
    _word("grafana-token", "glsa_", "glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}", "glsa_<w32>_<h8>"),
    _word("newrelic-key", "NRAK-", "NRAK-[A-Z0-9]{27}", "NRAK-<u27>"),
    _word("doppler-token", "dp.", r"dp\.(?:pt|st|ct|sa)\.[\w.-]{40}", "dp.pt.<w43>", tail=r"\w.-"),
    # Any provider
    _part("age-key", "AGE-SECRET-KEY-", "AGE-SECRET-KEY-1[0-9A-Z]{58}", "AGE-SECRET-KEY-1<u58>", "AGE-SECRET-KEY-1…"),
    Rule(
        "private-key",
        ("BEGIN ",),
        _PEM,
        (_PEM_SAMPLE, _PEM_SAMPLE.replace("\n", "\\n"), _PEM_SAMPLE.replace("RSA ", "OPENSSH ")[:-40]),
        ("-----BEGIN PRIVATE KEY-----\n…\n-----END PRIVATE KEY-----", '"-----BEGIN PRIVATE KEY-----" in text'),
        _has_key_material,
        before="-----",
    ),
    _word("jwt", "eyJ", r"eyJ[\w-]{10,}+\.eyJ[\w-]{10,}+\.[\w-]{20}", "eyJ<w30>.eyJ<w40>.<w43>", once=True),
    _word(
        "jwt",
        "eyJ",
        r"eyJ[\w-]{10,}+\.[\w-]*+\.[\w-]{8,}+\.[\w-]{8,}+\.[\w-]{16}",
        "eyJ<w30>..<w16>.<w40>.<w22>",
        once=True,
    ),
    Rule(
        "url-password",
        ("://",),
        r"://(?P<user>[^\s/@:\"'`<>\[\]]{0,64}):(?P<secret>(?!(?P=user)@)[^\s/@\"'`<>\[\]]{1,200}+)@[\w\[%.-]",
        ("postgres://app:<w12>@db.internal:5432/app", "https://me:<w20>@github.com/a/b.git"),
        ("https://user:password@host/", "http://localhost:3000/@me", "redis://u:${PASS}@x", "a://postgres:postgres@x"),
        _url_password,
    ),
    Rule(
        "authorization",
        ("uthorization",),
        rf"uthorization{_IS}{_QUOTE}(?:[A-Za-z]{{3,10}}[ \t]{{1,4}})?(?P<secret>(?!AWS4-)[\w.~+/-]{{12,}}+=*+)",
        ("Authorization: Basic <b32>", '"authorization": "Token <h40>"'),
        ("Authorization: Bearer $TOKEN", "Authorization: Bearer <token>", "authorization: required-by-the-server"),
        random_looking,
    ),
    Rule(
        "authorization",
        ("earer ",),
        r"earer[ \t]{1,4}(?P<secret>[\w.~+/-]{16,}+=*+)",
        ("-H 'X-Auth: Bearer <w32>'",),
        ("Bearer authentication is required",),
        random_looking,
    ),
    Rule(
        "cookie",
        ("ookie",),
        rf"ookies?{_IS}{_QUOTE}(?P<secret>[\w.%-]{{1,64}}=[^\r\n\"'`\\<>]{{8,4096}}+)",
        ("Cookie: theme=dark; session=<w32>; lang=en", "set-cookie: sid=<h40>; Path=/; HttpOnly"),
        ("Cookie: theme=dark; lang=en", "cookie = name=value&other=another-value-of-many"),
        _has_random_value,
        once=True,
    ),
    Rule(
        "password",
        ("passw", "passphrase", "pwd"),
        rf"(?:{_PASSWORD}){_MORE}{_IS}\\{{0,3}}(?P<quote>[\"'`])(?P<secret>[^\s\"'`\\]{{8,128}}+)\\{{0,3}}(?P=quote)",
        ("password: 'Tr0ub4dor&3x'", '\\"db_password\\": \\"k9#mPq2$vL\\"'),
        ("password='hunter2'", "password: '${DB_PASSWORD_1}'", "password = 'Ask.the.user1()'"),
        strong_password,
        folded=True,
    ),
    Rule(
        "password",
        ("passw", "passphrase", "pwd"),
        rf"(?:(?:{_PASSWORD}){_MORE}(?:=|:[ \t])|{_FLAG % _PASSWORD})"
        r"(?P<secret>(?![\"'`])[^\s\"'`\\,;&|<>]{8,128}+)(?=[\s\"'`\\,;&|<]|\Z)",
        ("PGPASSWORD=Tr0ub4dor_3%x psql", "password: k9#mPq2$vL", "mysql --password k9#mPq2$vL"),
        ("password=self.passwords[0]", "password: Type1.Other2", "PASSWORD=$1abcDEF9", "password=parse_Qs2(url)"),
        lambda text: strong_password(text) and not re.fullmatch(r"[A-Za-z_][\w.]*", text),
        folded=True,
    ),
    Rule(
        "assigned-secret",
        ("passw", "passphrase", "pwd", "secret", "token", *_KEYS),
        rf"{_NO_SECRET}(?:(?:{_PASSWORD}|secret|token|{_KEY}){_MORE}{_IS}{_QUOTE}"
        rf"|{_FLAG % f'{_PASSWORD}|secret|token|{_KEY}'}{_QUOTE})(?P<secret>[\w+/.~-]{{16,}}+={{0,2}})(?![\w(\[{{=])",
        ("MY_SERVICE_TOKEN=<w24>", '"apiKey": "<w32>"', "client_secret: <h32>", "run --api-key <w24>"),
        (f"TOKEN={_UUID_SAMPLE}", "token = tokenizer.next_token_or_none()", "secret: <your-secret-key-here>"),
        random_looking,
        folded=True,
    ),
    # Personal
    Rule(
        "user",
        ("/home/", "/Users/", "\\Users\\"),
        r"(?:/home/|/Users/|\\Users\\{1,4})(?P<secret>(?!Shared\b|Public\b|runner\b)[A-Za-z0-9][\w.-]{0,31})",
        ("/home/alice/project", "C:\\Users\\Alice\\x"),
        ("/home/ ", "/Users/Shared/x"),
        group=PERSONAL,
    ),
    Rule(
        "email",
        ("@",),
        r"@(?:[A-Za-z0-9-]{1,63}\.){1,4}[A-Za-z]{2,24}\b",
        ("alice@company.org",),
        ("user@localhost", "@decorator.name", "a@example.com"),
        lambda text: not re.search(r"(?i)@(?:[\w-]+\.)*(?:example\.(?:com|org|net)|noreply\.github\.com)$", text),
        before=r"[\w.+-]{1,64}",
        group=PERSONAL,
    ),
    Rule(
        "ip",
        (".",),
        r"\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(?![\w.-])",
        ("connect to 203.0.113.7:22",),
        ("127.0.0.1", "version 1.2.3.4.5", "300.1.1.1"),
        lambda text: all(int(part) < 256 for part in text.split(".")) and not text.startswith(("127.", "0.", "255.")),
        before=r"(?<![\w.-])[0-9]{1,3}",
        group=PERSONAL,
    ),
)
