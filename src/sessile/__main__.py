"""A tour of the engine in the terminal: what a session is, shown on one that lives in memory."""

from __future__ import annotations

from collections.abc import Iterator

from sessile import Session, TreeNode, __version__


def _told() -> Session:
    """A small story with two branches, a label and a compaction."""
    session = Session.in_memory("/work/payments-api")
    session.append_model_change("echo/demo")
    _say(session, "user", "Add retry with backoff to the webhook sender.")
    question = _say(session, "assistant", "Shall I write the loop by hand, or use a library?")
    _say(session, "user", "Approach A: by hand, no new dependency.")
    _say(session, "assistant", "Two tests fail: the error is never raised.")
    session.branch_with_summary(question, "Approach A: a hand-made loop; abandoned, two tests fail.")
    kept = _say(session, "user", "Approach B: use the library after all.")
    done = _say(session, "assistant", "All 8 tests pass.")
    session.append_label_change(done, "tests-green")
    session.append_compaction("Retry with backoff was added with a library; all tests pass.", kept, 48_200)
    _say(session, "user", "Now write the changelog line.")
    return session


def _say(session: Session, role: str, text: str) -> str:
    message = {"role": role, "content": [{"type": "text", "text": text}]}
    if role == "assistant":
        message |= {"provider": "echo", "model": "demo"}
    return session.append_message(message).id


def _drawn(roots: list[TreeNode], leaf: str | None) -> Iterator[str]:
    """The tree, one line an entry; only forks are indented."""
    waiting = [(node, 0) for node in reversed(roots)]
    while waiting:
        node, depth = waiting.pop()
        marks = [f"[{node.label}]"] if node.label else []
        marks += ["← leaf"] if node.entry.id == leaf else []
        yield " ".join([f"  {node.entry.id}  {'  ' * depth}{_line(node)}", *marks])
        deeper = depth + (len(node.children) > 1)
        waiting += [(child, deeper) for child in reversed(node.children)]


def _line(node: TreeNode) -> str:
    entry = node.entry
    if entry.type == "message":
        return f"{entry['message']['role']}: {entry['message']['content'][0]['text']}"
    return f"({entry.type}) {entry.get('summary') or entry.get('model') or ''}".rstrip()


def main() -> None:
    """Print the tour."""
    session = _told()
    context = session.context()
    print(f"Sessile {__version__}: a session is an append-only tree with a leaf.\n")
    print("\n".join(_drawn(session.get_tree(), session.leaf_id)))
    print(f"\nWhat the model sees at the leaf ({len(context.messages)} messages, model {context.models['default']}):")
    for message in context.messages:
        text = message.get("summary") or message["content"][0]["text"]
        print(f"  {message['role']}: {text}")
    print(f"\nNothing was lost: {len(session.get_entries())} entries, {len(session.get_abandoned())} abandoned branch.")
    print("This tour lived in memory; nothing was written. See README.md for the ten lines that do it in a file.")


if __name__ == "__main__":
    main()
