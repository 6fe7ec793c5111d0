"""Documentation: examples run, links resolve, and lists match the code."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from bench.measure import Measured, Rival, Row
from page_blocks import Reader, blocks_of
from pictures import modules, pictures
from reference import pages
from reference_config import errors_page, tables
from reference_measured import readme
from sessile import Store
from sessile.config import VARIABLES, load_config
from sessile.demo.corpus import make_demo

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ELSEWHERE = {"docs/howto/scale-out.md": "postgres/test_howto.py"}  # pages that need more than an empty home folder
BLOCKS = [page for page in PAGES if blocks_of(page) and str(page.relative_to(ROOT)) not in ELSEWHERE]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the store with the demo sessions."""
    folder = tmp_path_factory.mktemp("demo")
    make_demo(Store(folder))
    return folder


@pytest.mark.parametrize("page", BLOCKS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_do_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Blocks run in order in an empty home folder; output and exit codes match the page."""
    made = request.getfixturevalue("demo") if "--demo" in page.read_text() else None
    Reader(tmp_path, monkeypatch, made).follow(blocks_of(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    """Every relative link refers to a file or folder of the repository."""
    for target in re.findall(r"""(?:\]\(|src="|srcset=")([^)#"]+)""", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_table_of_the_readme_holds_what_was_measured(tmp_path: Path) -> None:
    """Each system has its time, the best is bold; only the largest size is shown, and rows without a peer are left out."""
    rows = [
        Row("S1", "resume 10 MB, context", 0.001, rivals={"pi": Rival(0.2, 200)}, curve="resume", at=10),
        Row("S1", "resume 1000 MB, context", 0.0015, rivals={"pi": Rival(9.5, 6333)}, curve="resume", at=1000),
        Row(
            "S4",
            "… append_message, the same texts",
            0.00002,
            rivals={"openai": Rival(0.0004, 20), "pi": Rival(failed="no")},
        ),
        Row("S4", "a short message", 0.002, rivals={"openai": Rival(0.004, 2), "pi": Rival(0.001, 0.5)}),
        Row("S9", "search", 0.1),
    ]
    peers = {"pi": "0.87.1", "openai": "0.24.0"}
    path = tmp_path / "measured.json"
    path.write_bytes(msgspec.json.encode(Measured("2026-11-16", "3.11", "Linux", 2, [10, 1000], peers, rows)))
    text = readme(path)
    assert "| resume, with the context, 1,000 MB | **1.50 ms** | 9.50 s |  |" in text
    assert "| append a message | **20.0 µs** | failed | 400.0 µs |" in text
    assert "| a short message | 2.00 ms | **1.00 ms** | 4.00 ms |" in text
    assert "an empty cell was not measured" in text
    assert "10 MB" not in text and "search |" not in text
    assert "pi 0.87.1, OpenAI Agents `SQLiteSession` 0.24.0" in text


def test_pages_that_are_run_elsewhere_are_run_there() -> None:
    """The test named for each of them reads the page."""
    for page, test in ELSEWHERE.items():
        assert blocks_of(ROOT / page) and Path(page).name in (ROOT / "tests" / test).read_text()


def test_the_configuration_of_a_page_means_something() -> None:
    """Every key in the TOML blocks is known."""
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/howto/run-the-gateway.md").read_text(), re.S)
    loaded = load_config("\n".join(blocks).encode(), "config.toml")
    assert len(blocks) > 1 and not loaded.unknown
    assert loaded.config.agents.named("main").model_name == "anthropic/claude-sonnet-4-5"


def test_every_how_to_is_in_the_list() -> None:
    """Every how-to guide and every decision is listed exactly once."""
    for folder in ("howto", "decisions"):
        listed = re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / folder / "README.md").read_text())
        there = {path.name for path in (ROOT / "docs" / folder).glob("*.md")} - {"README.md"}
        assert sorted(listed) == sorted(there)


def test_the_pictures_are_up_to_date_and_name_modules_that_exist() -> None:
    """`python tests/pictures.py` would change nothing."""
    for path, text in pictures().items():
        assert path.read_text() == text, path.name
    source = ROOT / "src" / "sessile"
    there = {path.stem for path in source.rglob("*") if path.suffix == ".py" or path.is_dir()}
    assert set(modules()) <= there


def test_the_pictures_of_the_page_are_small() -> None:
    """Every clone contains them; `python tests/screens.py docs/pictures readme` takes them again."""
    taken = sorted((ROOT / "docs" / "pictures").iterdir())
    assert [path.name for path in taken] == ["page-dark.png", "page-light.png"]
    assert all(path.stat().st_size < 300_000 for path in taken)


def test_every_picture_has_words() -> None:
    """Every picture has an alternative text of at least four words."""
    for page in PAGES:
        for words, target in re.findall(r"!\[(.*?)\]\((.*?)\)", page.read_text()):
            assert len(words.split()) >= 4, (page.name, target)


def test_no_page_uses_a_word_that_the_glossary_rules_out() -> None:
    """Prose uses one word for each thing; code and headings are not checked."""
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| .* \|(.*)\|$", (ROOT / "docs/glossary.md").read_text(), re.M)
    ruled_out = [word for _, words in rows for word in words.strip().split(", ") if word]
    assert len(rows) > 40 and len(ruled_out) > 8
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, ruled_out))})s?\b", re.I)
    for page in PAGES:
        if page.name not in ("glossary.md", "mission.md"):
            prose = re.sub(r"```(?!text).*?```|`[^`\n]*`|^#+ [^\n]*$", "", page.read_text(), flags=re.S | re.M)
            assert not pattern.findall(prose), page


def test_every_key_of_a_configuration_says_what_it_means() -> None:
    """The comment after each key describes it."""
    assert not [(table.place, key.name) for table in tables() for key in table.keys if not key.meaning]


def test_every_error_says_what_can_be_done() -> None:
    """Every error class except the base classes has a hint."""
    silent = {
        "SessileError",
        "NotFound",
        "Invalid",
        "Conflict",
        "Unreadable",
        "ExtensionFailed",
        "ModelFailed",
        "Refused",
    }
    rows = [line.split(" | ") for line in errors_page() if line.startswith("| `")]
    assert len(rows) > 40
    assert {row[0].strip("| `") for row in rows if not row[2].strip()} == silent


def test_every_environment_variable_that_is_looked_at_is_listed() -> None:
    """Modules read no environment variable that is not documented."""
    listed = {name for group in VARIABLES.values() for variable in group for name in variable.name.split(", ")}
    looked_at: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        lines = path.read_text().splitlines()
        if path.name != "variables.py" and any("environ" in line or "key_variable =" in line for line in lines):
            asked = [line for line in lines if re.search(r'environ|key_variable =|^    \("[A-Z_]+", ', line)]
            looked_at |= {name for line in asked for name in re.findall(r'"([A-Z]+(?:_[A-Z]+)*)"', line)}
    looked_at.discard("LESSCHARSET")  # set for the pager
    assert looked_at - listed == set()
    assert len(looked_at) > 20


def test_the_reference_is_up_to_date() -> None:
    """`python tests/reference.py` would change nothing."""
    for path, text in pages().items():
        assert path.read_text() == text, path.name


def test_common_changes_touch_at_most_three_files_that_exist() -> None:
    """The table in CONTRIBUTING.md names real files, at most three for each change."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = text.partition("| to add | change |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(rows) >= 10
    for row in rows:
        places = re.findall(r"`([\w/]+(?:\.py|/))`", row)
        assert 1 <= len(places) <= 3, row
        assert all((ROOT / "src" / "sessile" / place).exists() for place in places), row
