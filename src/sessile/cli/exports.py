"""Exporting sessions with secrets redacted, and finding secrets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import click
import msgspec

from sessile.cli.arguments import DAMAGED, SESSION, Named, damage, opened
from sessile.cli.command import App, verb
from sessile.cli.listing import catch_up, chosen, filters
from sessile.cli.output import Cell, Column, Pictures, Step, refuse_existing, size_of, write_file
from sessile.core.ids import is_plain_id
from sessile.core.redact import Redaction
from sessile.errors import Invalid, NotFound, Refused, SessileError, storage_failures
from sessile.export import FORMS, Export, share_redactor, share_report
from sessile.render.shown import DEPTHS, Depth
from sessile.render.wording import many
from sessile.session import Session


@verb(
    "sessile export webhook -o webhook.html          one file for a browser; secrets are redacted",
    "sessile export webhook -t md -o - | less        Markdown to stdout",
    "sessile export webhook@tests-green -t jsonl -o branch.jsonl",
    "sessile export webhook --redact review -o x.html  review each secret",
    name="export",
)
@click.argument("session", type=SESSION)
@click.option(
    "-t", "--to", "form", type=click.Choice(tuple(FORMS)), help="Format; default: by the name of the file, else html."
)
@click.option("-o", "--output", metavar="FILE", help="Output file; - for stdout.")
@click.option("--branch", metavar="LEAF", help="Only the path to this entry or label; default: all branches.")
@click.option(
    "--depth",
    type=click.Choice(DEPTHS),
    default="tools",
    help="How much to show (tools); HTML can show more on demand.",
)
@click.option("--redact", type=click.Choice(["auto", "review", "off"]), default="auto", help="Redact secrets (auto).")
@click.option("--personal", is_flag=True, help="Redact e-mail addresses, home folders and IP addresses too.")
@click.option(
    "--keep", metavar="PLACEHOLDER", multiple=True, help="Do not redact this secret; see the report for placeholders."
)
@click.option("--no-images", is_flag=True, help="Omit images.")
@click.option("--report", "report_file", metavar="FILE", help="Write a JSON report of redactions, without the secrets.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def export_verb(
    app: App,
    session: str,
    form: str | None,
    output: str | None,
    branch: str | None,
    depth: Depth,
    redact: str,
    personal: bool,
    keep: tuple[str, ...],
    no_images: bool,
    report_file: str | None,
    force: bool,
) -> int:
    """Export a session for others to read. Known kinds of secrets are replaced by stable placeholders."""
    with opened(app, session, branch=branch) as named:
        form = form or _form_of(output)
        target = _target(app, named.session, output, form)
        _check_target(target, form, force)
        kept = _review(app, named, keep, personal, images=not no_images) if redact == "review" else keep
        redactor = None if redact == "off" else share_redactor(personal=personal, home=app.places.home, keep=kept)
        with app.out.progress("Exporting") as progress:
            export = Export(named.session, leaf=named.at, redactor=redactor, images=not no_images, progress=progress)
            if target == "-":
                size, pictures = _to_stdout(export, form, depth), None
            else:
                size, pictures = _to_file(target, export, form, depth, force)
        if form == "jsonl" and target != "-":
            _artifacts(app, export, target, force)
        _print_redactions(app, export, redact)
        if report_file is not None:
            report_path = _absolute(app, report_file)
            write_file(report_path, [_report(named.session, export)], force=force, doing="write the report")
        if app.json and target != "-":
            found = [_described(redaction) for redaction in export.report]
            folder = pictures.folder if pictures else None
            app.out.document("export/1", found, path=target, bytes=size, form=form, images=folder)
        elif target != "-":
            app.out.line(target)
            app.out.note(f"{size_of(size)} written to {target}")
            if pictures:
                app.out.note(f"{many(pictures.count, 'image')} written to {pictures.folder}")
        return damage(app, named.session)


def _form_of(output: str | None) -> str:
    suffix = os.path.splitext(output or "")[1].lstrip(".").lower()
    form = {"": "html", "htm": "html", "markdown": "md"}.get(suffix, suffix)
    if form not in FORMS:
        raise Invalid(f"unknown export format .{suffix[:20]}", hint=f"pass -t {'|'.join(FORMS)}")
    return form


def _target(app: App, session: Session, output: str | None, form: str) -> str:
    if output == "-" or (output is None and not app.out.is_terminal):
        return "-"
    # The id comes from the file, and could contain a path.
    name = session.id[:8] if is_plain_id(session.id) else "unnamed"
    return _absolute(app, output or f"session-{name}.{form}")


def _absolute(app: App, path: str) -> str:
    return os.path.abspath(os.path.join(app.here, os.path.expanduser(path)))


def _check_target(target: str, form: str, force: bool) -> None:
    """Raise if the target cannot be written, before the work starts."""
    if target == "-":
        if sys.stdout.isatty() and form in ("html", "jsonl"):
            raise Invalid(f"cannot write {form} to a terminal", hint="pass -o FILE")
        return
    refuse_existing(target, force=force)
    if not os.path.isdir(os.path.dirname(target)):
        raise NotFound("folder not found", path=os.path.dirname(target), hint="create it first")


def _to_stdout(export: Export, form: str, depth: Depth) -> int:
    sys.stdout.flush()
    return sum(sys.stdout.buffer.write(piece) for piece in export.written(form, depth))


def _to_file(path: str, export: Export, form: str, depth: Depth, force: bool) -> tuple[int, Pictures | None]:
    """Write the export, and its images beside it if the format does not embed them."""
    pictures = Pictures(path)
    try:
        size = write_file(path, export.written(form, depth, keep=pictures.keep), force=force)
    except BaseException:
        pictures.forget()
        raise
    return size, pictures if pictures.count else None


def _artifacts(app: App, export: Export, target: str, force: bool) -> None:
    """Write the artifacts of the session to the folder beside the export."""
    folder = os.path.splitext(target)[0]
    left_out = 0
    for name, content in export.artifacts(app.store.fs):
        if content is None:
            left_out += 1
            continue
        path = os.path.join(folder, name)
        with storage_failures(path, "write an artifact"):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_file(path, [content], force=force, doing="write an artifact")
    if left_out:
        artifacts = many(left_out, "binary artifact was", "binary artifacts were")
        app.out.note(f"{artifacts} not exported. Include: --redact off")


def _print_redactions(app: App, export: Export, redact: str) -> None:
    """Print what was redacted, on stderr."""
    if redact == "off":
        app.out.note("secrets were not redacted: --redact off")
        return
    for found in export.report:
        what = "kept" if found.kept else "redacted"
        app.out.note(f"{what} {found.placeholder} {found.count}× ({found.length} characters)")
    replaced = sum(found.count for found in export.report if not found.kept)
    app.out.note(f"{many(replaced, 'secret')} redacted (best effort): review the file before you share it")


def _review(app: App, named: Named, keep: tuple[str, ...], personal: bool, *, images: bool) -> Collection[str]:
    """Ask the user about each finding and return the placeholders to keep."""
    redactor = share_redactor(personal=personal, home=app.places.home, keep=keep)
    report = Export(named.session, leaf=named.at, redactor=redactor, images=images).report
    _print_findings(app, [(named.session.id, found) for found in report])
    if not report:
        return keep
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        hint = "pass --redact auto, with --keep PLACEHOLDER for each secret to keep"
        raise Refused(f"{many(len(report), 'finding needs', 'findings need')} a review at a terminal", hint=hint)
    kept = set(keep)
    for found in report:
        answer = click.prompt(f"{found.placeholder}: [r]edact or [k]eep", default="r", err=True)
        if str(answer).lower().startswith("k"):
            kept.add(found.placeholder)
    return kept


def _report(session: Session, export: Export) -> bytes:
    report = msgspec.json.encode(share_report(session.id, export.report))
    return msgspec.json.format(report, indent=1) + b"\n"


# -- secrets


@verb(
    "sessile secrets                   all sessions; exit code 1 if any are found",
    "sessile secrets webhook           one session",
    "sessile secrets --since 7d --json for programs",
    name="secrets",
)
@click.argument("sessions", type=SESSION, nargs=-1)
@click.option("--personal", is_flag=True, help="Include e-mail addresses, home folders and IP addresses.")
@filters
def secrets_verb(app: App, sessions: tuple[str, ...], personal: bool, **options: Any) -> int:
    """Find known kinds of secrets. No part of them is printed. Nothing is changed."""
    found: list[tuple[str, Redaction]] = []
    skipped = 0
    hidden: Mapping[str, int] = {}
    if sessions:
        for name in sessions:
            with opened(app, name) as named:
                with app.out.progress("Searching for secrets") as progress:
                    found += _secrets_in(named.session, personal, progress)
                skipped += bool(damage(app, named.session))
    else:
        wanted = chosen(app, **options)
        catch_up(app)
        listing = app.library.list(wanted)
        hidden = listing.hidden
        with app.out.progress("Searching for secrets") as progress:
            for number, row in enumerate(listing.rows):
                progress(Step(number, len(listing.rows)))
                try:
                    with app.store.open(row.path, readonly=True) as session:
                        found += _secrets_in(session, personal)
                        skipped += bool(damage(app, session))
                except SessileError as error:
                    skipped += 1
                    app.out.note(f"note: not searched: {error}")
    if app.json:
        items = ({"session": session_id, **_described(redaction)} for session_id, redaction in found)
        app.out.document("secrets/1", items, hidden=hidden, skipped=skipped)
    else:
        _print_findings(app, found)
        app.out.hidden(hidden, "-A")
        app.out.note(f"{many(len(found), 'secret')} found" if found else "no secrets found (best effort)")
    return 1 if found else DAMAGED if skipped else 0


def _secrets_in(
    session: Session, personal: bool, progress: Callable[[Any], None] | None = None
) -> list[tuple[str, Redaction]]:
    redactor = share_redactor(personal=personal)
    return [(session.id, found) for found in Export(session, redactor=redactor, progress=progress).report]


def _print_findings(app: App, found: Sequence[tuple[str, Redaction]]) -> None:
    columns = [
        Column("session"),
        Column("rule"),
        Column("times", True),
        Column("length", True),
        Column("where", wide=True),
    ]
    short = 8 if app.out.columns else None
    app.out.table(
        columns,
        (
            [
                Cell(session_id[:short], "id", session_id),
                Cell(secret.rule, "failed"),
                Cell(str(secret.count)),
                Cell(str(secret.length)),
                Cell(", ".join(secret.where[:3]) + (" …" if len(secret.where) > 3 else "")),
            ]
            for session_id, secret in found
        ),
    )


def _described(found: Redaction) -> dict[str, Any]:
    return {
        "rule": found.rule,
        "placeholder": found.placeholder,
        "length": found.length,
        "count": found.count,
        "where": found.where,
        "kept": found.kept,
    }
