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
    "S9": (
        "Half of the time to index the sessions goes into decoding their entries and counting them for listings "
        "and statistics in the same pass, a third into SQLite, which sorts and writes the words. To catch up one "
        "session, the rows of all are read and compared with the files, half of the time for each; it varies "
        "around the target. A scan reads each block once and lets the C library look through it twice: for the "
        "needle, and for JSON escapes of its letters, which take three times as long, because a session is full "
        "of backslashes."
    ),
    "S10": (
        "More than half of it is the start: 196 modules, ours and those of click, msgspec and the standard library. "
        "The listing itself is S7."
    ),
    "S11": "Every row is decoded, translated and encoded again, and nothing of that is large; it varies around the target.",
    "S12": (
        "A turn finds its binding, appends what was said and answered, counts both and tells whoever listens, each step "
        "checked: 2.9 ms of work where the bare handler takes 1.0, more than half of that in the threads that append. "
        "About once a second the counters of all conversations are written, during which turns take longer."
    ),
    "S14": (
        "Indexing decodes whole lines, as said at S2; a session that is listed for the first time takes some "
        "eighty calls and a row in the catalog. What is counted now is guarded by `make test`, so that it "
        "does not become more."
    ),
    "A1": (
        "Of a warm listing half makes the 5,000 rows that are given back, and a quarter looks whether a file has "
        "changed. A first one looks for titles, tags, prompts and the last words in both ends of every file, as "
        "the SDK does, and writes a row for each."
    ),
    "A1b": "As A1, and the start of the command, which is S10.",
    "A2b": "Every row is decoded when it is read for the first time, as said at S2.",
    "A2c": "All messages of the path are decoded, which is what was asked for; the SDK does the same.",
}
