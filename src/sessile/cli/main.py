"""Where the command starts, and the table of its verbs.

`--version` is answered before anything is imported; a verb's module is imported when the verb is used.
"""

from __future__ import annotations

import gc
import sys

from sessile import __version__

# One row a verb: its module, and what `sessile --help` says of it. The function has the name of the verb.
VERBS = {
    "Look": {
        "ls": ("listing", "List sessions, newest first."),
        "show": ("reading", "Read a session, or follow it as it grows."),
        "tree": ("reading", "See its branches, labels and compactions."),
        "context": ("context", "See what the model saw, at any entry."),
        "diff": ("reading", "Compare two branches or two sessions."),
        "search": ("searching", "Find words in every session and branch."),
        "history": ("searching", "Find prompts that you typed."),
        "stats": ("stats", "Count tokens, money and tools."),
        "sources": ("starting", "See which folders are looked at; add one."),
    },
    "Work": {
        "resume": ("working", "Go on with a session in its agent."),
        "continue": ("working", "Go on with the last session of this folder."),
        "branch": ("working", "Move the leaf: the next message begins a branch there."),
        "fork": ("working", "Begin a new session from another, or from an entry of it."),
        "label": ("working", "Name an entry."),
        "rename": ("working", "Name a session."),
        "tag": ("working", "Tag a session."),
        "pin": ("working", "Keep a session from being cleaned up."),
        "compact": ("context", "Sum up what the model has read; nothing is removed."),
        "move": ("working", "Move a session to another project."),
    },
    "Talk": {
        "serve": ("serving", "Start the gateway, which owns conversations and answers."),
        "status": ("gateway", "See how the gateway is, or one of its conversations."),
        "sessions": ("gateway", "List conversations, newest first."),
        "send": ("gateway", "Say something in a conversation; the reply comes as it is written."),
        "mcp": ("serving", "Let agents search and read past sessions, through MCP."),
    },
    "Share": {
        "export": ("sharing", "Write a session as HTML, Markdown, text or JSON lines."),
        "import": ("converting", "Copy other agents' sessions into your own store."),
        "convert": ("converting", "Write a session in another agent's format."),
        "secrets": ("sharing", "Find secrets that sessions hold."),
    },
    "Keep": {
        "sync": ("converting", "Bring your sessions to another store: a folder or a database."),
        "keep": ("cleaning", "Copy sessions that their agent is about to delete."),
        "du": ("cleaning", "See what takes room on the disk."),
        "prune": ("cleaning", "Move old sessions to the trash; shows them first."),
        "trash": ("cleaning", "See what is in the trash, restore or empty it."),
        "undo": ("cleaning", "Take the last deletion back."),
        "check": ("health", "Read a session from end to end and say what is wrong."),
        "repair": ("health", "Mend a damaged session; the old file is kept."),
        "doctor": ("health", "Find out what is wrong, and what to do."),
    },
    "Begin": {
        "demo": ("starting", "Make up a store to try things on."),
        "completion": ("starting", "Complete verbs and sessions in your shell."),
    },
}
ALIASES = {"list": "ls", "cat": "show", "log": "tree", "grep": "search", "rm": "prune"}

_MANY = 50_000  # objects between two looks for garbage: importing makes thousands that all stay


def main() -> int:
    """Run the command; the exit code."""
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]) and sys.stdout is not None:
        print(__version__)
        return 0
    gc.set_threshold(_MANY)
    try:
        from sessile.cli.app import run

        code = run(arguments)
    except KeyboardInterrupt:
        return 130  # while modules were imported, or for the second time
    if code == 0:
        gc.freeze()  # all is done, and what is left goes with the process: nobody needs to look through it once more
    return code


if __name__ == "__main__":
    raise SystemExit(main())
