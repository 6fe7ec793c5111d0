"""The operations of the page: everything that it asks, below /v1/view, as rows of the table.

Rules: what only looks is GET, of the sessions of all agents; what changes something is POST, and of one's own sessions alone.
"""

from __future__ import annotations

from sessile.gateway.http.wire import Operation
from sessile.gateway.pages import actions, session, sessions, share

# There is no such session or entry; the name means several, or the session is not ours to change; it is too much for one answer;
# it is no picture that is shown.
GONE, UNCLEAR, TOO_LARGE, NO_PICTURE = 404, 409, 413, 415

VIEW: tuple[Operation, ...] = (
    # -- one session
    Operation(
        "GET",
        "/v1/view/session",
        "What a session is, and how it branches.",
        session.session,
        query=session.ViewQuery,
        answers={200: session.ViewedSession},
        problems=(GONE, UNCLEAR),
    ),
    Operation(
        "GET",
        "/v1/view/outline",
        "One line for each of some entries of a session.",
        session.outline,
        query=session.OutlineQuery,
        answers={200: session.ViewedOutline},
        problems=(GONE, UNCLEAR),
    ),
    Operation(
        "GET",
        "/v1/view/entries",
        "Some entries of a session as HTML.",
        session.entries,
        query=session.EntriesQuery,
        answers={200: session.ViewedEntries},
        problems=(GONE, UNCLEAR),
    ),
    Operation(
        "GET",
        "/v1/view/raw",
        "One entry of a session as it is stored.",
        session.raw,
        query=session.RawQuery,
        answers={200: session.ViewedRaw},
        problems=(GONE, UNCLEAR),
    ),
    Operation(
        "GET",
        "/v1/view/saw",
        "What the model saw when an entry was made.",
        session.saw,
        query=session.SawQuery,
        answers={200: session.Saw},
        problems=(GONE, UNCLEAR),
    ),
    Operation(
        "GET",
        "/v1/view/find",
        "Find words in a session, on all of its branches.",
        session.find,
        query=session.FindQuery,
        answers={200: session.FoundEntries},
        problems=(GONE, UNCLEAR),
    ),
    Operation(
        "GET",
        "/v1/view/diff",
        "See two branches of a session beside each other.",
        session.diff,
        query=session.DiffQuery,
        answers={200: session.ViewedDiff},
        problems=(GONE, UNCLEAR),
    ),
    # -- all sessions
    Operation(
        "GET",
        "/v1/view/overview",
        "What there is, at a glance.",
        sessions.view_overview,
        answers={200: sessions.Overview},
    ),
    Operation(
        "GET",
        "/v1/view/sessions",
        "List the sessions of all agents.",
        sessions.view_sessions,
        query=sessions.SessionsQuery,
        answers={200: sessions.SessionList},
        problems=(GONE,),
    ),
    Operation(
        "GET",
        "/v1/view/search",
        "Find words in the sessions of all agents.",
        sessions.view_search,
        query=sessions.SearchQuery,
        answers={200: sessions.SearchedAll},
        problems=(GONE,),
    ),
    Operation(
        "GET",
        "/v1/view/stats",
        "Tokens, money and tools of all sessions, as charts with tables.",
        sessions.view_stats,
        query=sessions.StatsQuery,
        answers={200: sessions.Statistics},
        problems=(GONE,),
    ),
    # -- sharing
    Operation(
        "GET",
        "/v1/view/share",
        "See what an export of a session would replace.",
        share.view_share,
        query=share.ShareQuery,
        answers={200: share.ShareReview},
        problems=(GONE, UNCLEAR, TOO_LARGE),
    ),
    Operation(
        "GET",
        "/v1/view/export",
        "A session as a file for others to read.",
        share.view_export,
        query=share.ExportQuery,
        answers={200: share.Binary},
        problems=(GONE, UNCLEAR, TOO_LARGE),
        media_type=share.FILE,
    ),
    Operation(
        "GET",
        "/v1/view/blob",
        "A picture that an entry names.",
        share.view_blob,
        query=share.BlobQuery,
        answers={200: share.Binary},
        problems=(GONE, UNCLEAR, TOO_LARGE, NO_PICTURE),
        media_types=share.PICTURES,
    ),
    # -- changing
    Operation(
        "POST",
        "/v1/view/session/rename",
        "Name a session.",
        actions.rename_session,
        body=actions.RenameBody,
        answers={200: actions.Changed},
        problems=(GONE, UNCLEAR),
    ),
    Operation(
        "POST",
        "/v1/view/session/label",
        "Name an entry, or take its name away.",
        actions.label_entry,
        body=actions.LabelBody,
        answers={200: actions.Changed},
        problems=(GONE, UNCLEAR),
    ),
    Operation(
        "POST",
        "/v1/view/session/tag",
        "Tag a session, or take its tag away.",
        actions.tag_session,
        body=actions.TagBody,
        answers={200: actions.Changed},
        problems=(GONE, UNCLEAR),
    ),
    Operation(
        "POST",
        "/v1/view/session/branch",
        "Move the leaf of a session to an earlier entry; nothing is removed.",
        actions.branch_session,
        body=actions.BranchBody,
        answers={200: actions.Changed},
        problems=(GONE, UNCLEAR),
    ),
    Operation(
        "POST",
        "/v1/view/session/pin",
        "Keep a session from being cleaned up, or do so no longer.",
        actions.pin_session,
        body=actions.PinBody,
        answers={200: actions.Changed},
        problems=(GONE, UNCLEAR),
    ),
    Operation(
        "POST",
        "/v1/view/session/fork",
        "Begin a new session of one's own from another, or from an entry of it.",
        actions.fork_session,
        body=actions.ForkOffBody,
        answers={200: actions.Changed},
        problems=(GONE, UNCLEAR),
    ),
)
