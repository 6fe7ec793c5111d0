"""The review of an export: findings with names and surrounding text, and never a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import assistant, user
from sessile import Export, Session
from sessile.export import review_export, share_redactor, share_report
from sessions import begun, store_at

ONE = "ghp_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3z5A"  # has the shape of a secret, but is not a real one
OTHER = "ghp_" + "zY9xW7vU5tS3rQ1pN9mL7kJ5hG3fE1dC9bA7"


@pytest.fixture
def session(tmp_path: Path) -> Session:
    found = begun(store_at(tmp_path))
    found.append_message(user(f"{'before ' * 30}{ONE}\n then {OTHER}{' after' * 30}"))
    found.append_message(assistant(f"again {ONE}"))
    return found


def test_findings_have_names_counts_places_and_surroundings(session: Session) -> None:
    """The text around a secret has other secrets replaced and is shortened."""
    review = review_export(session, leaf=None, redactor=share_redactor())
    assert [(found.id, found.times, len(found.places)) for found in review.findings] == [
        ("github-token#1", 2, 2),
        ("github-token#2", 1, 1),
    ]
    first = review.findings[0]
    assert first.excerpt is not None
    assert first.excerpt.startswith("…") and "[REDACTED:github-token#1] then [REDACTED:github-token#2]" in first.excerpt
    assert len(first.excerpt) < 250
    told = repr(review)
    assert ONE not in told and OTHER not in told


def test_names_of_a_review_keep_what_they_name_in_an_export(session: Session) -> None:
    """The same rules and session give the same names and placeholders in review and export."""
    for keep in (["github-token#2"], ["[REDACTED:github-token#2]"]):
        export = Export(session, redactor=share_redactor(keep=keep))
        text = b"".join(export.written("jsonl")).decode()
        assert ONE not in text and OTHER in text
    review = review_export(session, leaf=None, redactor=share_redactor(keep=["github-token#2"]))
    assert [found.kept for found in review.findings] == [False, True]


def test_a_secret_in_title_or_label_is_found_there(tmp_path: Path) -> None:
    """A secret outside the entries has a place, too."""
    with begun(store_at(tmp_path)) as session:
        at = session.append_message(user("hello")).id
        session.append_label_change(at, ONE)
        (found,) = review_export(session, leaf=None, redactor=share_redactor()).findings
    assert found.excerpt == "[REDACTED:github-token#1]"
    assert any(place.startswith("labels/") for place in found.places)


def test_images_are_counted_where_they_leave(tmp_path: Path) -> None:
    """Images on other branches are not counted."""
    image = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}
    with begun(store_at(tmp_path)) as session:
        root = session.append_message(user("hello")).id
        session.append_message({"role": "user", "content": [image, image]})
        session.branch(root)
        leaf = session.append_message({"role": "user", "content": [image]}).id
        assert review_export(session, leaf=None, redactor=share_redactor()).images == 3
        assert review_export(session, leaf=leaf, redactor=share_redactor()).images == 1


def test_the_home_folder_is_personal(tmp_path: Path) -> None:
    """It is hidden only on request."""
    with begun(store_at(tmp_path)) as session:
        session.append_message(user("see /srv/people/ana/notes"))
        for personal, rules in ((False, []), (True, ["home-folder"])):
            redactor = share_redactor(personal=personal, home="/srv/people/ana")
            assert [found.rule for found in review_export(session, leaf=None, redactor=redactor).findings] == rules


def test_a_report_is_a_document_without_secrets(session: Session) -> None:
    """The report lists what was replaced."""
    review = review_export(session, leaf=None, redactor=share_redactor())
    told = share_report(session.id, review.report)
    assert (told["schema"], told["session"], len(told["items"])) == ("sessile.share-report/1", session.id, 2)
