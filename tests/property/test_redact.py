"""Redaction of any text and any JSON value with a secret anywhere in it."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any
from urllib.parse import quote

from hypothesis import assume, example, given
from hypothesis import strategies as st

from sessile.core.redact import Redactor, find_secrets
from sessile.core.secret_shapes import PERSONAL, RULES, SECRET, fill
from strategies import NASTY, json_values

BOTH = (SECRET, PERSONAL)
PLACEHOLDER = re.compile(r"\[REDACTED:[a-z0-9-]+#[0-9]+\]")
SHAPED = [rule for rule in RULES if rule.group == SECRET and "<" in rule.samples[0]]
SAMPLES = [rule.samples[0] for rule in SHAPED]
TOKENS = [rule.samples[0] for rule in SHAPED if rule.pattern.startswith("(?:") and rule.tail]


def drawn(sample: str, seed: int) -> str:
    source = Random(seed)
    return fill(sample, lambda alphabet, length: "".join(source.choices(alphabet, k=length)))


secrets = st.builds(drawn, st.sampled_from(SAMPLES), st.integers(0, 2**32))
# Remains of secrets, the text around them, and placeholders of redaction itself.
shards = st.sampled_from(
    (
        *("ghp_", "sk-", "sk-ant-", "eyJ", ".", "token=", "password: '", "://u:", "@h", "Bearer ", "Authorization: "),
        *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "\n", "\\n", '"', "'", "=", ":", "_", "-", "%20"),
        *(
            "[REDACTED:jwt#1]",
            "[REDACTED:",
            "#1]",
            "]",
            "[",
            "/home/",
            "a@b.co",
            "1.2.3.4",
            "--api-key ",
            '"api_key": "',
        ),
    )
)
halves = st.builds(lambda secret, cut: secret[: len(secret) * cut // 8], secrets, st.integers(1, 8))
texts = st.lists(secrets | halves | shards | st.text(NASTY, max_size=5) | st.text(max_size=5), max_size=8).map("".join)


@given(texts)
@example("ghp_" * 30)
@example("token=token=" + "a1" * 20)
def test_redacting_again_changes_nothing_and_nothing_is_found_any_more(text: str) -> None:
    """This holds for the same redactor, another one, and a scan."""
    for groups in ((SECRET,), BOTH):
        redactor = Redactor(groups=groups)
        once = redactor.redact(text)
        assert find_secrets(once, groups=groups) == []
        assert redactor.redact(once) == once
        assert Redactor(groups=groups).redact(once) == once


@given(texts)
def test_text_outside_of_secrets_is_untouched(text: str) -> None:
    """Putting the secrets back restores the text."""
    assume("[REDACTED:" not in text)
    redactor = Redactor(groups=BOTH)
    redacted = redactor.redact(text)
    behind = {seen.placeholder: secret for secret, seen in redactor._seen.items()}
    restored = redacted
    while PLACEHOLDER.search(restored):  # a secret may have contained a placeholder
        restored = PLACEHOLDER.sub(lambda match: behind[match.group()], restored)
    assert restored == text


@given(texts)
def test_findings_are_in_order_and_within_the_text(text: str) -> None:
    """None is empty, and none overlaps another."""
    end = 0
    for secret in find_secrets(text, groups=BOTH):
        assert end <= secret.start < secret.end <= len(text)
        end = secret.end


EMBEDDINGS: list[Any] = [
    lambda secret: f"see {secret} there",
    lambda secret: json.dumps({"text": f"a\n{secret}\nb"}),
    lambda secret: json.dumps(json.dumps({"text": f"a\n{secret}\nb"})),
    lambda secret: f"first\\n{secret}\\nlast",
    lambda secret: f"export NAME='{secret}' && run",
    lambda secret: f"$ echo {secret} | tee file",
    lambda secret: f"| a | `{secret}` |",
    lambda secret: f"密钥：{secret}。",
    lambda secret: f"\x1b[32m{secret}\x1b[0m",
    lambda secret: f"   17\t{secret}\n   18\tnext",
]


@given(st.sampled_from(SAMPLES), st.integers(0, 2**32), st.sampled_from(EMBEDDINGS))
def test_a_secret_is_found_wherever_it_is_written(sample: str, seed: int, embed: Any) -> None:
    """In JSON, nested JSON, shells, tables, other scripts, colours and numbered lines."""
    text = drawn(sample, seed)
    found = find_secrets(text)
    assume(found)  # a generated secret may look like a word; how rarely is measured elsewhere
    secret = text[found[0].start : found[0].end]
    redacted = Redactor().redact(embed(text))
    assert PLACEHOLDER.search(redacted)
    for line in secret.split("\n"):
        assert line not in redacted


@given(st.sampled_from(TOKENS), st.integers(0, 2**32))
def test_a_token_is_found_in_addresses(sample: str, seed: int) -> None:
    """In the path, in the query, and after a percent escape."""
    token = drawn(sample, seed)
    assume(find_secrets(token))
    for text in (f"https://h/{token}/x", f"https://h/?k={token}&x=1", f"x%20{token}%0A", f"q={quote('=')}{token}"):
        assert token not in Redactor().redact(text)


names = st.sampled_from(
    ["text", "password", "API_TOKEN", "name", "value", "data", "type", "signature", "content", "a/b"]
)
values: st.SearchStrategy[Any] = st.recursive(
    json_values | texts | st.just("k9#mPq2$vL"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | texts, inner, max_size=4),
    max_leaves=8,
)


def shape(value: Any) -> Any:
    """Return the value without texts and names."""
    if isinstance(value, dict):
        return [shape(item) for item in value.values()]
    if isinstance(value, list | tuple):
        return (len(value), [shape(item) for item in value])
    return "text" if isinstance(value, str) else repr(value)


@given(values)
def test_a_redacted_value_has_the_shape_of_the_value(value: Any) -> None:
    """Members, items, numbers and their order stay; the original is unchanged."""
    before = repr(value)
    redacted = Redactor().redact_value(value)
    assert shape(redacted) == shape(value)
    assert repr(value) == before
    json.dumps(redacted)


@given(values)
def test_a_redacted_value_is_clean_and_stays_as_it_is(value: Any) -> None:
    """A second redactor changes nothing."""
    redacted = Redactor().redact_value(value)
    again = Redactor()
    assert again.redact_value(redacted) is redacted
    assert again.report == []


@given(values)
def test_the_report_counts_every_placeholder_and_spells_no_secret(value: Any) -> None:
    """It shows no part of a secret but its length."""
    assume("[REDACTED:" not in repr(value))
    redactor = Redactor()
    redacted = redactor.redact_value(value)
    written = PLACEHOLDER.findall(json.dumps(redacted))
    rows = {row.placeholder: row for row in redactor.report}
    assert set(written) <= set(rows)
    for secret, row in redactor._seen.items():
        assert len(secret) < 12 or secret[4:12] not in repr(row)
        assert row.count >= 1 and row.length == len(secret)
