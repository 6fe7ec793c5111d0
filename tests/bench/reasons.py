"""Reasons for missed targets, for the page on speed: a few sentences for each investigated subject."""

from __future__ import annotations

REASONS = {
    "S2": (
        "The first read of a line decodes the whole line, so that damage in the middle is found then and not when the line is "
        "needed ([decision 4](../decisions/0004-heads-are-decoded-not-matched.md)). A megabyte takes 11.7 million instructions; "
        "a prototype that only looked at the heads of lines took 4.6."
    ),
    "S4": (
        "An append locks the file, checks whether other processes have written, and verifies what it wrote: five system calls. "
        "The bare loop makes one."
    ),
    "S5": (
        "The time of a sync varies between runs by more than what Sessile adds to it. A durable append makes six system calls, "
        "which `tests/bench/test_bench.py` counts; one of them is a sync."
    ),
    "S6": (
        "Before it writes, each writer reads what the others have appended, so that its entries are children of the newest ones."
    ),
    "S7": (
        "The first listing of a session takes about eighty calls and a row in the catalog, which stores more than a listing "
        "shows. No single function takes a tenth of the instructions."
    ),
    "S8": (
        "`append_message` with eight kilobytes takes 220,000 instructions: 51,000 to encode, 45,000 to append the encoded line. "
        "The rest copies and checks the message, so that later changes by the caller have no effect, and updates the tree and "
        "the context."
    ),
    "S9": (
        "Half of the indexing time decodes entries and counts them for listings and statistics; a third is spent in SQLite, "
        "which sorts and writes the words. Catching up one session reads the rows of all sessions and compares them with the "
        "files, about half of the time for each; the result varies around the target. A scan reads each block once and searches "
        "it twice in the C library: for the text, and for JSON escapes of its letters. The second search takes three times as "
        "long, because a session contains many backslashes."
    ),
    "S10": (
        "More than half of it is start-up: 196 modules of Sessile, click, msgspec and the standard library. The listing itself "
        "is S7."
    ),
    "S11": "Every row is decoded, translated and encoded again; no single step dominates. The result varies around the target.",
    "S12": (
        "A turn finds its binding, appends the message and the answer, counts both and notifies the listeners, and checks every "
        "step. That takes 2.9 ms, where the bare handler takes 1.0; more than half of it is spent in the threads that append. "
        "About once per second the counters of all conversations are written, and turns take longer during that time."
    ),
    "S14": (
        "Indexing decodes whole lines (see S2). The first listing of a session takes about eighty calls and a row in the "
        "catalog. `make test` checks the current counts, so that they do not grow."
    ),
    "A1": (
        "Half of a warm listing builds the 5,000 rows that it returns, and a quarter checks whether files have changed. A first "
        "listing looks for titles, tags, prompts and the last words at both ends of every file, as the SDK does, and writes a "
        "row for each."
    ),
    "A1b": "The same as A1, and the start-up of the command (S10).",
    "A2b": "The first read decodes every row (see S2).",
    "A2c": "The call has to decode all messages of the path; the SDK does the same.",
}
