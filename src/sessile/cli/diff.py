"""How two branches or two sessions differ."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import click

from sessile.cli.app import App, verb
from sessile.cli.naming import SESSION, Named, damage, opened
from sessile.core.compare import By, Side, compare
from sessile.errors import Invalid
from sessile.render.compare_text import compare_lines


@verb(
    "sessile diff webhook@deadbee1 webhook   two branches of one session",
    "sessile diff webhook                    the leaf's branch and the one that was left last",
    "sessile diff 6513 77aa --json           two sessions",
    name="diff",
)
@click.argument("left", type=SESSION)
@click.argument("right", type=SESSION, required=False)
def diff_verb(app: App, left: str, right: str | None) -> int:
    """Compare two branches or two sessions: what they share, then side by side, then what each cost and did."""
    with ExitStack() as open_ones:
        first = open_ones.enter_context(opened(app, left))
        if right is None:
            other = [entry.id for entry in first.session.get_abandoned()]
            if not other:
                raise Invalid("this session has one branch only", hint="name two: sessile diff SESSION@LEAF SESSION")
            first, second = first._replace(entry=other[-1]), first
        else:
            second = open_ones.enter_context(opened(app, right))
        by: By = "id" if first.session.path == second.session.path else "content"
        comparison = compare(first.session.iter_branch(first.at), second.session.iter_branch(second.at), by)
        if app.json:
            sides = {name: _told_side(side) for name, side in (("left", comparison.left), ("right", comparison.right))}
            app.out.document("diff/1", common=comparison.common, common_id=comparison.common_id, **sides)
        else:
            # Two columns are no help to who has them read aloud.
            columns = None if app.out.plain else app.out.columns
            app.out.page(compare_lines(comparison, columns, (_name("A", first), _name("B", second))))
        sessions = {named.session.path: named.session for named in (first, second)}
        return max(damage(app, session) for session in sessions.values())


def _name(letter: str, named: Named) -> str:
    """Which branch a side is: by its head, and its label if it has one."""
    tip = named.at or named.session.leaf_id
    label = None if tip is None else named.session.get_label(tip)
    return f"{letter} {label or (tip or '')[:8]}".rstrip()


def _told_side(side: Side) -> dict[str, Any]:
    return {name: value for name, value in side._asdict().items() if name != "turns"}
