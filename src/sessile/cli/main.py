"""Entry point of the `sessile` command, and the table of its verbs.

`--version` is answered before anything is imported. A verb's module is imported when the verb is used.
"""

from __future__ import annotations

import gc
import sys

from sessile import __version__

# One row per verb: its module, and its line in `sessile --help`. The function is called `<verb>_verb`.
VERBS = {
    "Read": {
        "ls": ("listing", "List sessions, newest first."),
        "show": ("transcript", "Read a session, or follow it as it grows."),
        "tree": ("transcript", "Show branches, labels and compactions."),
        "context": ("model_view", "Show what the model saw at any entry."),
        "diff": ("transcript", "Compare two branches or two sessions."),
        "search": ("query", "Search all sessions and branches."),
        "history": ("query", "Search the prompts that you typed."),
        "stats": ("stats", "Count tokens, cost and tool calls."),
        "sources": ("sources", "List the folders that sessions come from, or add one."),
    },
    "Work": {
        "resume": ("resume", "Resume a session in its agent."),
        "continue": ("resume", "Resume the latest session of this folder."),
        "branch": ("edits", "Move the leaf, so that the next message starts a branch."),
        "fork": ("edits", "Create a session from another one, or from one of its entries."),
        "label": ("edits", "Label an entry."),
        "rename": ("edits", "Rename a session."),
        "tag": ("edits", "Tag a session."),
        "pin": ("edits", "Protect a session from cleanup."),
        "compact": ("model_view", "Summarize older messages for the model; nothing is removed."),
        "move": ("edits", "Move a session to another project."),
    },
    "Serve": {
        "serve": ("servers", "Start the gateway and its web page."),
        "status": ("gateway_client", "Show the status of the gateway, or of a conversation."),
        "sessions": ("gateway_client", "List conversations, newest first."),
        "send": ("gateway_client", "Send a message to a conversation and stream the reply."),
        "mcp": ("servers", "Let agents search and read past sessions over MCP."),
    },
    "Share": {
        "export": ("exports", "Export a session as HTML, Markdown, text or JSON lines."),
        "import": ("copies", "Copy sessions of other agents into your store."),
        "convert": ("copies", "Write a session in another agent's format."),
        "secrets": ("exports", "Find secrets in sessions."),
    },
    "Maintain": {
        "sync": ("copies", "Copy your sessions to another store: a folder or a database."),
        "keep": ("cleanup", "Copy sessions that their agent is about to delete."),
        "du": ("cleanup", "Show disk usage."),
        "prune": ("cleanup", "Move old sessions to the trash; shows them first."),
        "trash": ("cleanup", "List, restore or empty the trash."),
        "undo": ("cleanup", "Undo the last deletion."),
        "erase": ("cleanup", "Erase a session for good, with everything made from it."),
        "check": ("health", "Read sessions from end to end and report damage."),
        "repair": ("health", "Repair a damaged session; the original file is kept."),
        "doctor": ("health", "Find problems and suggest fixes."),
    },
    "Get started": {
        "demo": ("welcome", "Create a store of made-up sessions to try things out."),
        "completion": ("welcome", "Print the completion script for your shell."),
    },
}
ALIASES = {"list": "ls", "cat": "show", "log": "tree", "grep": "search", "rm": "prune"}

_GC_THRESHOLD = 50_000  # imports create thousands of objects that all stay


def main() -> int:
    """Run the command and return the exit code."""
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]) and sys.stdout is not None:
        print(__version__)
        return 0
    gc.set_threshold(_GC_THRESHOLD)
    try:
        from sessile.cli.command import run  # after --version, which imports nothing

        code = run(arguments)
    except KeyboardInterrupt:
        return 130  # during imports, or for the second time
    if code == 0:
        gc.freeze()  # skip the last collection: the process ends anyway
    return code


if __name__ == "__main__":
    raise SystemExit(main())
