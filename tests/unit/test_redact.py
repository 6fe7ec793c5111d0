"""Secrets are found by their shapes, hidden behind stable placeholders, and reported without being shown."""

from __future__ import annotations

import base64
import json
import os
import random
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from figures import measured
from sessile.core.redact import MAX_PLACES, Redactor, find_secrets
from sessile.core.secret_shapes import PERSONAL, RULES, SECRET, Rule, fill
from sessile.errors import TooLarge

BOTH = (SECRET, PERSONAL)
GITHUB = fill("ghp_<w36>")
ANTHROPIC = fill("sk-ant-api03-<w95>")
PASSWORD = "k9#mPq2$vL"
SAMPLES = [pytest.param(rule, sample, id=f"{rule.name}-{sample[:24]!r}") for rule in RULES for sample in rule.samples]
NEAR_MISSES = [
    pytest.param(rule, text, id=f"{rule.name}-{text[:24]!r}") for rule in RULES for text in rule.near_misses if text
]


def names(text: str, **options: Any) -> list[str]:
    return [secret.rule for secret in find_secrets(text, **options)]


def drawn(sample: str, seed: int) -> str:
    """Return a sample filled as a provider would, with random characters."""
    source = random.Random(seed)
    return fill(sample, lambda alphabet, length: "".join(source.choices(alphabet, k=length)))


# The table tests itself.


@pytest.mark.promise("P29")
@pytest.mark.parametrize(("rule", "sample"), SAMPLES)
def test_every_sample_of_a_row_is_found_under_its_name(rule: Rule, sample: str) -> None:
    """Alone, and between other words."""
    assert names(fill(sample), groups=(rule.group,)) == [rule.name]
    assert names(f"see {fill(sample)} there", groups=(rule.group,)) == [rule.name]
    measured("P29", "samples of the table", samples=1, found=1)


@pytest.mark.parametrize(("rule", "text"), NEAR_MISSES)
def test_no_near_miss_of_a_row_is_found_by_it(rule: Rule, text: str) -> None:
    """Truncated keys and placeholders of manuals."""
    assert rule.name not in names(fill(text), groups=(rule.group,))


@pytest.mark.parametrize(("rule", "sample"), SAMPLES)
def test_a_sample_of_crosses_is_a_stand_in(rule: Rule, sample: str) -> None:
    """`ghp_xxxx…` is a placeholder, not a secret."""
    if "<" in sample and rule.group == SECRET:
        assert names(fill(sample, lambda _, length: "x" * length)) == []


@pytest.mark.promise("P29")
@pytest.mark.parametrize(("rule", "sample"), SAMPLES)
def test_at_least_ninety_nine_of_a_hundred_keys_are_found(rule: Rule, sample: str) -> None:
    """The keys have random characters."""
    if "<" in sample:
        tries = 200
        found = sum(bool(find_secrets(drawn(sample, seed))) for seed in range(tries))
        assert found >= tries * (0.99 if rule.name not in GUESSED else 0.95), found / tries
        measured("P29", "keys generated like the providers' keys", keys=tries, found=found)


GUESSED = {"assigned-secret", "authorization", "sk-key"}  # no shape of their own: some draws look like words


def test_every_row_has_samples_near_misses_and_literals_that_begin_its_pattern() -> None:
    """Every row can be tested by its own samples."""
    for rule in RULES:
        assert rule.samples and rule.near_misses and rule.literals, rule.name
        folded = [fill(sample).lower() if rule.folded else fill(sample) for sample in rule.samples]
        assert all(any(literal in sample for literal in rule.literals) for sample in folded), rule.name
        assert not rule.folded or all(literal == literal.lower() for literal in rule.literals)


def test_the_table_and_these_tests_hold_no_secret_by_their_own_rules() -> None:
    """Scanners find nothing in them but the passwords written for these tests."""
    from sessile.core import secret_shapes as table

    assert table.__file__ is not None
    shown = [Path(table.__file__).read_text(), Path(__file__).read_text()]
    assert {name for text in shown for name in names(text)} <= {"password", "url-password"}


# What is found, and how much of it.


def test_only_the_secret_part_is_found() -> None:
    """Hosts, users, names and quotes around it stay."""
    text = f'curl -H "Authorization: Bearer {GITHUB}" https://me:{PASSWORD}@host/x'
    assert [text[start:end] for _, start, end in find_secrets(text)] == [GITHUB, PASSWORD]


def test_the_rule_that_says_most_gives_the_name() -> None:
    """A GitHub token in a header or a variable is a GitHub token."""
    assert names(f"Authorization: token {GITHUB}") == ["github-token"]
    assert names(f"MY_TOKEN={GITHUB}") == ["github-token"]
    assert names(f"Bearer {ANTHROPIC}") == ["anthropic-key"]


def test_secrets_come_in_order_and_do_not_overlap() -> None:
    """The order of the rules does not matter."""
    text = " ".join(fill(rule.samples[0]) for rule in RULES)
    found = find_secrets(text, groups=BOTH)
    assert all(before.end <= after.start for before, after in pairwise(found))
    assert len(found) > 60


@pytest.mark.parametrize(
    "around",
    [
        '{{"a": "{}"}}',
        "line\\n{}\\nline",
        "https://host/path?key={}&x=1",
        "https://host/{}/x",
        "redirect=%2F{}%26",
        "export KEY={}; run",
        "\x1b[31m{}\x1b[0m",
        "\x1b[1;32m{}\x1b[0m",
        "   12\t{}",
        "`{}`",
        "密钥是{}。",
        "🙂{}🙂",
        "KEY='{}'",
        "<b>{}</b>",
    ],
)
def test_a_secret_is_found_in_any_surroundings(around: str) -> None:
    """Escaped newlines, percent escapes, colours, tags and other scripts end a word."""
    text = around.format(GITHUB)
    assert [text[start:end] for _, start, end in find_secrets(text)] == [GITHUB]


@pytest.mark.promise("P29")
@pytest.mark.parametrize("colour", ["\x1b[31m", "\x1b[0m", "\x1b[01;31m\x1b[K", "\x1b]8;;http://x\x07"])
def test_a_secret_that_colours_cut_into_pieces_is_found_whole(colour: str) -> None:
    """The whole secret is hidden, as printed by `grep --color`."""
    for place in range(len(GITHUB) + 1):
        text = f"before {GITHUB[:place]}{colour}{GITHUB[place:]} behind"
        assert names(text) == ["github-token"]
        redacted = Redactor().redact(text)
        assert "[REDACTED:github-token#1]" in redacted and GITHUB[4:12] not in redacted.replace(colour, "")
        assert redacted.startswith("before ") and redacted.endswith(" behind")
    split = colour.join(GITHUB)
    assert GITHUB[-1] not in Redactor().redact(split).replace("[REDACTED:github-token#1]", "").replace(colour, "")


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "DSA ", "OPENSSH ", "ENCRYPTED "])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\\n", "\\\\n", "\n    12\t", "\n> "])
def test_private_keys_are_hidden_as_a_whole(kind: str, newline: str) -> None:
    """Keys of any kind are hidden on real, escaped, quoted and numbered lines, and without an end line."""
    lines = [f"-----BEGIN {kind}PRIVATE KEY-----", *[fill("<b64>")] * 3, fill("<b20>=")]
    whole = newline.join([*lines, f"-----END {kind}PRIVATE KEY-----"])
    assert Redactor().redact(f"key: {whole} end") == "key: [REDACTED:private-key#1] end"
    assert Redactor().redact(f"key: {newline.join(lines)} end") == "key: [REDACTED:private-key#1] end"


def test_a_pgp_block_is_hidden_with_its_headers() -> None:
    """Version lines contain dashes and spaces."""
    body = f"Version: GnuPG v2 (GNU/Linux) - x\n\n{fill('<b64>')}\n{fill('<b40>')}\n=AbCd"
    text = f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{body}\n-----END PGP PRIVATE KEY BLOCK-----"
    assert Redactor().redact(text) == "[REDACTED:private-key#1]"


@pytest.mark.parametrize(
    "text",
    [
        "550e8400-e29b-41d4-a716-446655440000",
        "token: 550e8400-e29b-41d4-a716-446655440000",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
        "sha512-" + base64.b64encode(random.Random(1).randbytes(64)).decode(),
        '"integrity": "sha512-' + base64.b64encode(random.Random(2).randbytes(64)).decode() + '"',
        "sha256:" + "0123456789abcdef" * 4,
        "password: xxxxxxxxxxxx",
        "PASSWORD=<your-password>",
        "API_KEY=your-api-key-goes-here1",
        "api_key: ${API_KEY_1}",
        "token = process.env.GITHUB_TOKEN_2",
        'secret = os.environ["CLIENT_SECRET_1"]',
        "password=changeme1A!",
        "token = parser.next_token_2(self, kind2)",
        "const tokenKind2 = SyntaxKind.Token2Identifier;",
        "AKIAIOSFODNN7EXAMPLE",
        "https://user:pass@example.com/",
        "git@github.com:owner/repo.git",
        "http://[::1]:8080/@scope/name",
        "-----BEGIN CERTIFICATE-----\n" + "MIIB" * 16 + "\n-----END CERTIFICATE-----",
        "max_tokens: 4096, total_tokens=123456789012",
    ],
)
def test_what_only_looks_like_a_secret_is_left(text: str) -> None:
    """Ids, hashes, placeholders, code and certificates."""
    assert names(text) == []


def test_personal_rules_are_off_until_asked_for() -> None:
    """Home folders, e-mail and IP addresses are not secrets, but can be hidden."""
    text = "/home/alice/x from alice@company.org at 203.0.113.7"
    assert names(text) == []
    redacted = Redactor(groups=BOTH).redact(text)
    assert redacted == "/home/[REDACTED:user#1]/x from [REDACTED:email#1] at [REDACTED:ip#1]"


# The redactor.


def test_the_same_secret_gets_the_same_placeholder_everywhere() -> None:
    """Numbers count the secrets of a rule, in order of their first occurrence."""
    other = drawn("ghp_<w36>", 1)
    redactor = Redactor()
    assert redactor.redact(f"{GITHUB} {other}") == "[REDACTED:github-token#1] [REDACTED:github-token#2]"
    assert redactor.redact(f"{other} {ANTHROPIC}") == "[REDACTED:github-token#2] [REDACTED:anthropic-key#1]"


def test_a_password_that_was_given_away_once_is_hidden_from_then_on() -> None:
    """A second pass also hides earlier occurrences."""
    redactor = Redactor()
    texts = [f"log in with {PASSWORD}", f"DB_PASSWORD={PASSWORD}", f"echo {PASSWORD}"]
    first = [redactor.redact(text) for text in texts]
    assert first == [texts[0], "DB_PASSWORD=[REDACTED:password#1]", "echo [REDACTED:password#1]"]
    assert [redactor.redact(text) for text in texts] == [
        "log in with [REDACTED:password#1]",
        "DB_PASSWORD=[REDACTED:password#1]",
        "echo [REDACTED:password#1]",
    ]


def test_a_weak_password_is_hidden_in_its_place_only() -> None:
    """Otherwise every `horses` in the text would be hidden."""
    assert Redactor().redact("ftp://me:horses@host horses") == "ftp://me:[REDACTED:url-password#1]@host horses"


def test_known_texts_are_hidden_as_words() -> None:
    """A user name, or a text that the user chose, is hidden."""
    redactor = Redactor(known={"al": "user"})
    assert redactor.redact("al said: also al.") == "[REDACTED:user#1] said: also [REDACTED:user#1]."


def test_a_kept_secret_stays_and_is_reported_as_kept() -> None:
    """The numbers of the others do not change."""
    other = drawn("ghp_<w36>", 1)
    redactor = Redactor(keep=["[REDACTED:github-token#1]"])
    assert redactor.redact(f"{GITHUB} {other} {GITHUB}") == f"{GITHUB} [REDACTED:github-token#2] {GITHUB}"
    assert [(row.kept, row.count) for row in redactor.report] == [(True, 2), (False, 1)]


def test_the_report_tells_everything_but_the_secret() -> None:
    """Rule, placeholder, count, places and length, and no part of the secret."""
    redactor = Redactor()
    value = {"a/b": [GITHUB, f"x {GITHUB}"], GITHUB: 1, "password": PASSWORD}
    redactor.redact_value(value, "/entries/7")
    rows = {row.rule: row for row in redactor.report}
    token, password = rows["github-token"], rows["password"]
    assert (token.length, token.count) == (40, 3)
    assert token.where == ("/entries/7/a~1b/0", "/entries/7/a~1b/1", "/entries/7")
    assert (password.length, password.where) == (10, ("/entries/7/password",))
    for secret in (GITHUB, PASSWORD):
        assert not any(secret[at : at + 3] in f"{redactor.report}" for at in range(len(secret) - 2))


def test_places_in_the_report_never_spell_a_secret() -> None:
    """A member named by a secret is reported by its placeholder."""
    redactor = Redactor()
    redactor.redact_value({GITHUB: {"x": ANTHROPIC}})
    assert redactor.report[1].where == ("/[REDACTED:github-token#1]/x",)


def test_the_report_names_a_bounded_number_of_places() -> None:
    """All are counted."""
    redactor = Redactor()
    redactor.redact_value([GITHUB] * (MAX_PLACES + 20))
    assert len(redactor.report[0].where) == MAX_PLACES and redactor.report[0].count == MAX_PLACES + 20


def test_names_of_members_tell_what_their_values_are() -> None:
    """The name may itself be a value, as in `{"name": …, "value": …}`."""
    value = {"env": [{"name": "DB_PASSWORD", "value": PASSWORD}], "apiKey": fill("<w32>"), "title": fill("<w32>")}
    redacted = Redactor().redact_value(value)
    assert redacted["env"] == [{"name": "DB_PASSWORD", "value": "[REDACTED:password#1]"}]
    assert redacted["apiKey"] == "[REDACTED:assigned-secret#1]"
    uuid = drawn("<h8>-<h4>-<h4>-<h4>-<h12>", 1)
    assert Redactor().redact_value({"HEROKU_API_KEY": uuid, "id": uuid})["id"] == uuid
    assert Redactor().redact_value({"HEROKU_API_KEY": uuid}) == {"HEROKU_API_KEY": "[REDACTED:heroku-key#1]"}


def test_unchanged_parts_are_shared() -> None:
    """A value without secrets is returned itself."""
    clean: dict[str, Any] = {"a": [1, 2.5, None, True, {"b": "text"}], "c": ("x",)}
    assert Redactor().redact_value(clean) is clean
    mixed = {"clean": clean, "dirty": [GITHUB]}
    redacted = Redactor().redact_value(mixed)
    assert redacted["clean"] is clean and redacted["dirty"] == ["[REDACTED:github-token#1]"]
    assert mixed["dirty"] == [GITHUB]


def test_no_member_hides_another() -> None:
    """A member may already have the name of its neighbour's placeholder."""
    redacted = Redactor().redact_value({GITHUB: 1, "[REDACTED:github-token#1]": 2})
    assert sorted(redacted.values()) == [1, 2] and GITHUB not in redacted


@pytest.mark.parametrize("key", ["thinkingSignature", "thoughtSignature", "textSignature", "signature"])
def test_signatures_are_left_alone(key: str) -> None:
    """Providers refuse a changed one; a secret in their place is still hidden."""
    signature = "ghp_" + base64.urlsafe_b64encode(random.Random(3).randbytes(300)).decode()
    block = {"type": "thinking", "thinking": "", key: signature}
    assert Redactor().redact_value(block) is block
    assert Redactor().redact_value({**block, key: GITHUB})[key] == "[REDACTED:github-token#1]"
    assert GITHUB not in Redactor().redact_value({**block, key: "A" * 400 + GITHUB})[key]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "data": "DATA", "mimeType": "image/png"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "DATA"}},
        {"inlineData": {"mimeType": "image/png", "data": "DATA"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,DATA"}},
        {"type": "image", "data": "blob:sha256:" + "0123456789abcdef" * 4, "mimeType": "image/png"},
    ],
)
def test_images_are_left_alone(block: Any) -> None:
    """Base64 matches shapes by chance, and a changed byte breaks the image."""
    data = fill("AKIA<u16>") + "/" + base64.b64encode(random.Random(4).randbytes(3000)).decode()
    block = json.loads(json.dumps(block).replace("DATA", data))
    assert Redactor().redact_value(block) is block


def test_a_secret_beside_an_image_is_hidden() -> None:
    """Only base64 counts as an image."""
    block = {"type": "image", "data": f"see {GITHUB}", "mimeType": "image/png"}
    assert Redactor().redact_value(block)["data"] == "see [REDACTED:github-token#1]"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_placeholder_is_never_a_secret(rule: Rule) -> None:
    """Redacting twice changes nothing."""
    placeholder = f"[REDACTED:{rule.name}#12]"
    for text in (
        "password: {}",
        "TOKEN='{}'",
        "a://u:{}@h",
        "Bearer {}",
        '{{"api_key":"{}"}}',
        "/home/{}/x",
        "x@{}.com",
    ):
        text = text.format(placeholder)
        assert find_secrets(text, groups=BOTH) == [] and Redactor(groups=BOTH).redact(text) == text
    assert Redactor().redact_value({"password": placeholder}) == {"password": placeholder}


def test_a_text_that_does_not_settle_is_hidden_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of a secret is left."""
    from sessile.core import redact

    monkeypatch.setattr(redact, "MAX_PASSES", 0)
    assert Redactor().redact(f"see {GITHUB}") == "[REDACTED:unsettled#1]"


def test_lone_surrogates_and_short_texts_do_not_matter() -> None:
    """Offsets are those of the text."""
    assert Redactor().redact(f"\ud800İ{GITHUB}\udfff") == "\ud800İ[REDACTED:github-token#1]\udfff"
    assert Redactor().redact("") == ""


def test_deep_values_are_walked() -> None:
    """Secrets are found up to the maximum depth of an entry."""
    value: Any = GITHUB
    for _ in range(128):
        value = {"a": [value]}
    redacted = Redactor().redact_value(value)
    assert "[REDACTED:github-token#1]" in json.dumps(redacted)
    for _ in range(2000):
        value = [value]
    with pytest.raises(TooLarge):
        Redactor().redact_value(value)


# Precision and time.


def library_sources() -> Iterator[tuple[str, str]]:
    root = Path(os.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if "site-packages" not in path.parts:
            yield str(path.relative_to(root)), path.read_text("utf-8", "replace")


# Real keys and tokens in the tests of the library, by file. None so far: its keys are `.pem` files.
LIBRARY_SECRETS: frozenset[str] = frozenset()


@pytest.mark.promise("P29")
def test_ordinary_code_has_at_most_one_hit_in_ten_megabytes() -> None:
    """The sources of Python, tests included."""
    size, hits = 0, []
    for name, text in library_sources():
        size += len(text)
        if name not in LIBRARY_SECRETS:
            hits += [(name, secret.rule) for secret in find_secrets(text)]
    assert len(hits) <= max(1, size / 10_000_000), hits
    measured("P29", "ordinary code", characters=size, false_hits=len(hits))


def minified(size: int) -> str:
    """Return text as in bundles, lock files and source maps: long lines of names, numbers, hashes and base64."""
    source = random.Random(5)
    parts, length = [], 0
    words = [
        "e",
        "t",
        "n",
        "token",
        "key",
        "secret",
        "password",
        "api_key",
        "sk-",
        "hf_",
        "AK",
        "auth",
        "user",
        "http://",
    ]
    makers = [
        lambda: f"function {source.choice(words)}{source.randrange(99)}(e,t){{return e.{source.choice(words)}=t}}",
        lambda: f'"integrity":"sha512-{base64.b64encode(source.randbytes(64)).decode()}",',
        lambda: f"var {source.choice(words)}={source.choice(words)}[{source.randrange(9999)}]||{{}};",
        lambda: (
            f'"{source.randbytes(20).hex()}":"{source.choice(words)}-{source.randrange(99)}.{source.randrange(9)}.0",'
        ),
        lambda: "".join(source.choices("AACAEIMQUYgcaekimquy,;", k=200)),
        lambda: f'{source.choice(words)}:"{source.choice(words)}-{source.choice(words)}-{source.choice(words)}",',
        lambda: f"url(data:font/woff2;base64,{base64.b64encode(source.randbytes(300)).decode()})",
        lambda: f'id:"{source.randbytes(4).hex()}-{source.randbytes(2).hex()}-4{source.randbytes(1).hex()}a",',
    ]
    while length < size:
        parts.append(source.choice(makers)())
        length += len(parts[-1])
    return "".join(parts)


def test_minified_code_and_lock_files_have_no_hits() -> None:
    """Hashes, source maps, fonts and ids are not secrets."""
    text = minified(5_000_000)
    assert [(secret.rule, text[secret.start : secret.end]) for secret in find_secrets(text)] == []


def seconds(text: str) -> float:
    start = time.process_time()
    find_secrets(text, groups=BOTH)
    return time.process_time() - start


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.name}-{rule.literals[0]!r}")
def test_no_text_takes_more_than_its_share_of_time(rule: Rule) -> None:
    """Repeated starts of a secret are scanned in linear time."""
    sample = fill(rule.samples[0])
    for unit in (rule.literals[0], f'{rule.literals[0]}="', sample, sample[:-1], sample[: len(sample) // 2] + "n"):
        assert seconds((unit * (80_000 // len(unit) + 1))[:80_000]) < 1.5, unit


@pytest.mark.parametrize("megabytes", [0.5, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "unit", ["sk-", "eyJa", "token=", "password:'", "-----BEGIN PRIVATE KEY-----", "://a:", "\\n", "a"]
)
def test_hostile_megabytes_are_scanned_in_seconds(unit: str, megabytes: float) -> None:
    """Every few characters may start like a secret. The limit leaves room for a busy machine."""
    assert seconds(unit * int(megabytes * 1_000_000 // len(unit))) < 12 * megabytes
