"""Where the sessions of a person are: one's own store, other agents' folders, the cache.

Environment variables say where they are (`core/variables` lists them). With a database as one's own store, what belongs to this
machine, such as the configuration and the token of the gateway, stays in ~/.sessile.

Nothing is created here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sessile import Source, __version__, family_homes, is_database
from sessile.errors import InvalidConfig

if TYPE_CHECKING:
    from sessile import Store


class Places(NamedTuple):
    """The folders of one person."""

    home: str
    store: str  # one's own: a folder, or the address of a database
    root: str  # the folder of what belongs to this machine; that of the store, if it is one
    cache: str
    blobs: str | None  # the address of an object store for large content
    family: Sequence[Source]  # those of other agents, whether they exist or not

    def sources(self, store: Store) -> list[Source]:
        """The folders of other agents that exist, and those that the person has added."""
        from sessile import added_sources

        added = [source_at(path) for path in added_sources(store).names()]
        return [source for source in (*self.family, *added) if os.path.isdir(source.sessions)]


def source_at(folder: str) -> Source:
    """A folder that somebody has named: the root of a store, or a folder with session files."""
    sessions = f"{folder}/sessions"
    return Source("folder", folder, sessions if os.path.isdir(sessions) else folder)


def find_places(environ: Mapping[str, str], *, root: str | None, demo: bool) -> Places:
    """The folders that this environment names."""
    home = environ.get("HOME") or os.path.expanduser("~")
    if not os.path.isabs(home):
        raise InvalidConfig("HOME is not set to an absolute path", hint="set HOME, or say --root PATH")
    cache = environ.get("SESSILE_CACHE") or _cache_folder()
    if demo:
        made_up = f"{cache}/demo-{__version__}"
        return Places(home, made_up, made_up, f"{cache}/demo-cache", None, ())
    given = root or environ.get("SESSILE_ROOT") or f"{home}/.sessile"
    own = f"{home}/.sessile" if is_database(given) else os.path.abspath(os.path.expanduser(given))
    homes = family_homes(home, environ)
    family = [Source(agent, folder, f"{folder}/sessions") for agent, folder in homes if folder != own]
    family += _others(home, environ)
    store = given if is_database(given) else own
    blobs = environ.get("SESSILE_BLOBS") or None
    return Places(home, store, own, os.path.abspath(os.path.expanduser(cache)), blobs, family)


def _others(home: str, environ: Mapping[str, str]) -> list[Source]:
    """The folders of agents with formats of their own, and of gateways."""
    claude = environ.get("CLAUDE_CONFIG_DIR") or f"{home}/.claude"
    codex = environ.get("CODEX_HOME") or f"{home}/.codex"
    sources = [
        Source("claude", claude, f"{claude}/projects"),
        Source("codex", codex, f"{codex}/sessions"),
        Source("codex", codex, f"{codex}/archived_sessions"),
        Source("myagents", f"{home}/.myagents", f"{home}/.myagents/sessions"),
    ]
    gateways = [environ.get("OPENCLAW_STATE_DIR") or f"{home}/.openclaw", f"{home}/.yoyoclaw"]
    for root in gateways:
        agents = f"{root}/agents"
        names = sorted(os.listdir(agents)) if os.path.isdir(agents) else []
        sources += [Source("openclaw", root, f"{agents}/{name}/sessions") for name in names] or [
            Source("openclaw", root, f"{agents}/main/sessions")
        ]
    return sources


def _cache_folder() -> str:
    import platformdirs

    return platformdirs.user_cache_dir("sessile", appauthor=False)
