"""What a page is worked with: search, depth, colours, jumps, the filter of its tree, and the help that lists every key.

Rules: every action is a button with a name (`data-action`), most are a key as well; `web/export.js` knows what they do. What
needs that script has the class `scripted`, and is not there without it: depth and colours are chosen by style sheet alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from sessile.core.parts import DEPTHS, Depth

_THEMES = ("system", "light", "dark")


def toolbar(depth: Depth) -> str:
    """The bar at the top, with the depth that is shown first."""
    search = (
        '<input id="query" type="search" placeholder="Search all branches  /" aria-label="Search all branches" '
        'autocomplete="off" spellcheck="false"><output id="hits" for="query"></output>'
    )
    groups = (
        f'<form class="find scripted" role="search">{search}{_HITS}</form>',
        _labels("depth", DEPTHS),
        f'<span class="scripted jumps">{_PROMPTS}</span>',
        '<span class="gone scripted" id="gone"></span>',
        _labels("theme", _THEMES),
        f'<span class="scripted">{_OTHERS}</span>',
    )
    choices = _choices("depth", "Depth", DEPTHS, depth) + _choices("theme", "Colours", _THEMES, "system")
    return f'{choices}<div class="bar" role="region" aria-label="Tools">{"".join(groups)}</div>\n'


def _choices(group: str, name: str, values: Sequence[str], chosen: str) -> str:
    """The choices themselves stand before all that they change, so that plain sibling selectors reach it."""
    inputs = (
        f'<input class="chooser" type="radio" name="{group}" id="{group}-{value}" value="{value}" '
        f'aria-label="{name}: {value}"{" checked" if value == chosen else ""}>\n'
        for value in values
    )
    return "".join(inputs)


def _labels(group: str, values: Sequence[str]) -> str:
    labels = "".join(f'<label for="{group}-{value}">{value}</label>' for value in values)
    return f'<span class="choice {group}">{labels}</span>'


def _button(action: str, sign: str, name: str) -> str:
    return f'<button type="button" data-action="{action}" aria-label="{name}" title="{name}">{sign}</button>'


_HITS = _button("hit-previous", "↑", "Previous hit") + _button("hit-next", "↓", "Next hit")
_PROMPTS = (
    _button("prompt-previous", "↑", "Previous prompt")
    + '<span aria-hidden="true">prompt</span>'
    + _button("prompt-next", "↓", "Next prompt")
)
_OTHERS = _button("print", "print", "Print this branch") + _button("help-open", "?", "Help and keys")

TREE_FILTER = (
    '<p class="filter scripted"><label for="filter">show</label> <select id="filter"></select> '
    '<button type="button" data-action="fold-all">fold</button> '
    '<button type="button" data-action="unfold-all">unfold</button></p>'
)
"""What the tree shows; the script fills in the choices, with how many entries each has."""

_KEYS = (
    ("j", "entry-next", "next entry"),
    ("k", "entry-previous", "previous entry"),
    ("J", "prompt-next", "next prompt"),
    ("K", "prompt-previous", "previous prompt"),
    ("}", "fork-next", "next fork"),
    ("{", "fork-previous", "previous fork"),
    ("[", "branch-previous", "branch before, at this fork"),
    ("]", "branch-next", "branch after, at this fork"),
    ("g", "first", "first entry"),
    ("G", "last", "last entry"),
    ("/", "search", "search in all branches"),
    ("n", "hit-next", "next hit"),
    ("N", "hit-previous", "previous hit"),
    ("o", "open-all", "open or fold what is on the screen"),
    ("t", "tree", "show or hide the tree"),
    ("?", "help-open", "this help"),
)

HELP = (
    '<dialog id="help" aria-labelledby="help-name"><h2 id="help-name">Keys</h2><table>'
    + "".join(
        f'<tr><td><kbd>{key}</kbd></td><td><button type="button" data-action="{action}">{name}</button></td></tr>'
        for key, action, name in _KEYS
    )
    + "</table><p>Times are in UTC. Each entry has a link, #, that opens its branch.</p>"
    '<button type="button" data-action="help-close">close</button></dialog>\n'
)
"""Every key, with a button that does the same."""
