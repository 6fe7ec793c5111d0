"""Every shape in every surrounding is found, and nothing of it can be recovered from the redacted text."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from figures import measured
from leaks import SHAPES, SURROUNDINGS, Shape, leaks, written
from sessile.core.redact import Redactor, find_secrets
from sessile.core.secret_shapes import PERSONAL, SECRET

pytestmark = pytest.mark.promise("P29")

LOGGED = 'failed with {}\nTraceback (most recent call last):\n  File "x.py", line 252, in run\n    raise Failed()\n'


def test_the_table_is_large_enough() -> None:
    """At least 30 shapes and 40 surroundings, each with its own name."""
    assert len({shape.name for shape in SHAPES}) >= 50 and len(SURROUNDINGS) >= 75


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_the_detector_reads_every_surrounding(name: str) -> None:
    """Otherwise a leak would not be seen."""
    for shape in SHAPES[::9]:
        key = written(shape, name)
        assert leaks(SURROUNDINGS[name](key), key.body), shape.name


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_no_part_of_a_secret_can_be_recovered(shape: Shape) -> None:
    """Wherever it stands and however it is written, alone and between other lines."""
    leaked = []
    for name, surround in SURROUNDINGS.items():
        key = written(shape, name)
        for around in ("{}", LOGGED):
            redacted = Redactor().redact(around.replace("{}", surround(key)))
            if leaks(redacted, key.body):
                leaked.append((name, around[:4]))
    assert leaked == []
    measured("P29", "shapes in surroundings", texts=2 * len(SURROUNDINGS), leaks=0)


# -- precision

# Files that consist of sample credentials, tokens of manuals and keys of tests, or of hashes by names of resources.
SAMPLES = ("awscli", "botocore", "cfnlint", "moto", "authlib", "oauthlib", "joserfc", "jwt", "test", "tests")
KINDS = (".py", ".pyi", ".md", ".rst", ".txt", ".js", ".css", ".html", ".toml", ".h")


def ordinary_files() -> Iterator[tuple[str, str]]:
    """Yield the code and prose of the libraries on this machine, without copies."""
    library = Path(os.__file__).parent
    seen: set[int] = set()
    for folder in dict.fromkeys((library, Path(pytest.__file__).parent.parent, Path("/usr/share/doc"))):
        for path in sorted(folder.rglob("*")):
            if path.suffix in KINDS and path.is_file() and set(path.parts).isdisjoint(SAMPLES):
                text = path.read_text("utf-8", "replace")
                if hash(text) not in seen:
                    seen.add(hash(text))
                    yield str(path), text


@pytest.mark.parametrize("megabytes", [2, pytest.param(50, marks=pytest.mark.long)])
def test_ordinary_code_and_prose_have_at_most_five_false_hits_in_fifty_megabytes(megabytes: int) -> None:
    """Every hit counts, except a secret that was found before: manuals repeat their samples."""
    size, hits = 0, set()
    files = list(ordinary_files()) if megabytes > 10 else ordinary_files()
    if isinstance(files, list):
        random.Random(17).shuffle(files)  # not only the library of Python
    for name, text in files:
        hits |= {(secret.rule, text[secret.start : secret.end], name) for secret in find_secrets(text)}
        size += len(text)
        if size > megabytes * 1_000_000:
            break
    values = {(rule, value) for rule, value, _ in hits}
    assert len(values) <= max(1, 5 * size / 50_000_000), sorted((rule, name, value[:12]) for rule, value, name in hits)
    measured("P29", "ordinary code and prose", characters=size, false_hits=len(values))


# -- time

HOSTILE = (
    *("sk-", "eyJa", "token=", "password:'", "-----BEGIN PRIVATE KEY-----", "://a:", "ghp_\n", "gh\np_abcdefghijklmn"),
    *(
        "sk-\\n",
        "%25",
        "%2525",
        "&amp;",
        "\\",
        "\\\\u005f",
        "\\u0041",
        "%41",
        "&#65;",
        "\x1b[0m",
        "a\x00",
        "A",
        "QUFB",
        "67",
    ),
    *(
        "\n> ",
        "ookie=a=",
        "eyJaaaaaaaaaaa.",
        "AKIA",
        "password=a\n",
        "token: abc \\\n",
        "uthorization: a ",
        "=\n",
        "iVBORw0KGgo",
    ),
    *(
        "A" * 60 + "\n",
        "\x1b[",
        "\x1b]8;;",
        "ghp_" + "a1B2" * 9 + "\n",
        "hvs.",
        "SK0a",
        "Z2hwX2FiYw",
        "%5F",
        "\\x67\\x68",
    ),
)


def seconds(text: str) -> float:
    """The time of the faster of two searches, which is less noisy."""
    times = []
    for _ in range(2):
        start = time.process_time()
        find_secrets(text, groups=(SECRET, PERSONAL))
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize("size", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("unit", HOSTILE, ids=lambda unit: repr(unit[:16]))
def test_twice_the_text_takes_twice_the_time(unit: str, size: int) -> None:
    """Four times the text takes less than ten times as long; a quadratic search would need sixteen times."""
    once = (unit * (size // len(unit) + 1))[:size]
    for _ in range(5):  # a busy machine may disturb one measurement
        short, long = seconds(once), seconds(once * 4)
        if long < 10 * short + 0.02:
            return
    raise AssertionError((unit, short, long))
