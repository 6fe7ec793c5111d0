"""How two branches or two sessions differ."""

from __future__ import annotations

from typing import Any

import click

from sessile.cli.app import App, verb
from sessile.cli.naming import SESSION, opened
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
    with opened(app, left) as first:
        if right is None:
            other = [entry.id for entry in first.session.get_abandoned()]
            if not other:
                raise Invalid("this session has one branch only", hint="name two: sessile diff SESSION@LEAF SESSION")
            comparison = compare(first.session.get_branch(other[-1]), first.session.get_branch(first.at))
        else:
            with opened(app, right) as second:
                by: By = "id" if first.session.path == second.session.path else "content"
                paths = first.session.get_branch(first.at), second.session.get_branch(second.at)
                comparison = compare(*paths, by)
    if app.json:
        sides = {name: _told_side(side) for name, side in (("left", comparison.left), ("right", comparison.right))}
        app.out.document("diff/1", common=comparison.common, common_id=comparison.common_id, **sides)
    else:
        app.out.page(compare_lines(comparison, app.out.columns))
    return 0


def _told_side(side: Side) -> dict[str, Any]:
    return {name: value for name, value in side._asdict().items() if name != "turns"}
