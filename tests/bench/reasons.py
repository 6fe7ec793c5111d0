"""Why a target is missed where it is, for the page on speed: a sentence or two for each subject that was looked into."""

from __future__ import annotations

REASONS = {
    "S2": (
        "A line is decoded as a whole when it is read for the first time, so that damage in its middle is "
        "found then and not when it is needed ([decision "
        "4](../decisions/0004-heads-are-decoded-not-matched.md)). A megabyte takes 11.7 million instructions;"
        " a prototype that looked at the heads of lines only took 4.6."
    ),
    "S4": (
        "An append takes the lock of the file, looks whether others have written, and checks what it wrote: "
        "five system calls, where the bare loop has one."
    ),
    "S5": (
        "The time of a sync varies from run to run by more than what is added to it. Of the six system calls "
        "of a durable append, which `tests/bench/test_bench.py` counts, one is a sync."
    ),
    "S6": (
        "Each writer reads what the others have appended before it writes, so that its entries hang from the "
        "newest ones."
    ),
    "S7": (
        "A session that is listed for the first time takes some eighty calls and a row in the catalog, which "
        "keeps more of it than a listing shows; no single function has a tenth of the instructions."
    ),
    "S8": (
        "Of the 220,000 instructions of `append_message` with eight kilobytes the encoding takes 51,000 and "
        "the append of the encoded line 45,000; the rest copies and checks the message, so that a caller who "
        "changes it later changes nothing, and keeps the tree and the context."
    ),
    "S14": (
        "Indexing decodes whole lines, as said at S2; a session that is listed for the first time takes some "
        "eighty calls and a row in the catalog. What is counted now is guarded by `make test`, so that it "
        "does not become more."
    ),
}
