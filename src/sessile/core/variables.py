"""Every environment variable that is looked at, one row each: what holds without it, and what it is for.

It is a table for people; whoever reads a variable does so where the machine is touched, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Variable(NamedTuple):
    """One variable; `default` says what holds without it."""

    name: str
    default: str
    meaning: str


VARIABLES: Mapping[str, Sequence[Variable]] = {
    "Where things are": (
        Variable(
            "SESSILE_ROOT", "`~/.sessile`", "one's own store: a folder, or the address of a database (postgresql://…)"
        ),
        Variable("SESSILE_BLOBS", "in the store", "an object store for large content (s3://bucket/prefix)"),
        Variable("SESSILE_CACHE", "the system's folder for caches", "the cache, which may be deleted at any time"),
        Variable("HOME", "that of the user", "where `~` is; with a database, the configuration and tokens stay there"),
    ),
    "Where other agents keep their sessions": (
        Variable("CLAUDE_CONFIG_DIR", "`~/.claude`", "Claude Code"),
        Variable("CODEX_HOME", "`~/.codex`", "Codex"),
        Variable("OPENCLAW_STATE_DIR", "`~/.openclaw`", "OpenClaw"),
        Variable("PI_CODING_AGENT_DIR", "`~/.pi/agent`", "pi"),
        Variable("PI_CONFIG_DIR", "`.omp`, `.xcsh`", "oh-my-pi and xcsh, below the home"),
        Variable("XDG_DATA_HOME", "`~/.local/share`", "oh-my-pi and xcsh, if they follow it"),
    ),
    "How the command speaks": (
        Variable("NO_COLOR", "colours at a terminal", "no colours; so does TERM=dumb"),
        Variable("FORCE_COLOR", "no colours at a pipe", "colours at a pipe, too"),
        Variable("SESSILE_PAGER", "`$PAGER`", "the pager; `cat` is none"),
        Variable("PAGER", "`less -FRX`", "the pager, if SESSILE_PAGER names none"),
        Variable("SESSILE_PLAIN", "0", "1 is the same as `--plain`: words instead of glyphs and columns"),
        Variable("TERM", "", "`dumb` is a terminal without colours and without a bar of progress"),
        Variable("COLUMNS, LINES", "as the terminal says", "its size"),
        Variable("TZ", "that of the machine", "the time zone of what people are shown"),
        Variable("PWD", "", "the working folder, if somebody has removed it"),
        Variable(
            "KITTY_WINDOW_ID, TMUX_PANE, TERM_SESSION_ID, WT_SESSION",
            "the tty",
            "which terminal this is, for programs that note its session (`terminal_id`)",
        ),
    ),
    "Keys": (
        Variable("ANTHROPIC_API_KEY", "none", "Anthropic's models; `apiKeyEnv` may name another variable"),
        Variable("OPENAI_API_KEY", "none", "OpenAI's models; `apiKeyEnv` may name another variable"),
        Variable("AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY", "none", "the object store of SESSILE_BLOBS"),
        Variable("AWS_ENDPOINT, AWS_REGION", "Amazon's", "where that object store is"),
        Variable("PGPASSWORD", "`~/.pgpass`", "the password of the database, if its address has none"),
    ),
}
