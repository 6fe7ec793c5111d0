"""The tests of the OpenAI Agents SDK pass with our sessions in place of its own.

They come from its source distribution and run unmodified in their own environment, with a plugin that replaces two
classes. Tests that open the SQLite database or use its connections are left out by name.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from peers.peers import CACHE, HERE, INSTALL_SECONDS

pytestmark = [pytest.mark.peers, pytest.mark.mission("B9")]

VERSION = "0.24.0"
SUITE_SECONDS = 1800
NEEDS = (
    *("pytest>=9.0.3", "pytest-asyncio", "pytest-mock", "pytest-timeout", "pytest-xdist", "inline-snapshot"),
    *("aiosqlite", "cryptography>=45,<51", "sqlalchemy[asyncio]", "fakeredis", "graphviz", "fastapi", "httpx"),
    *("litellm", "numpy", "websockets", "anyio>=4.4", "msgspec"),
)

# Tests that use sessions of the replaced class.
FILES = (
    *("memory", "extensions/memory/test_encrypt_session.py", "sandbox/test_memory.py"),
    *("test_agent_runner.py", "test_agent_runner_streamed.py", "test_max_turns.py", "test_soft_cancel.py"),
    *("test_native_tool_failure_history.py", "test_programmatic_tool_calling.py", "test_run_impl_resume_paths.py"),
    *("test_tool_batch_failure_history.py", "test_tool_failure_boundaries.py"),
)

CONNECTIONS = "looks at the connections of SQLite"
DATABASE = "opens the tables of the database"
ISINSTANCE = "only for an instance of the SDK's own class does the encrypted session look before it pops"
LEFT_OUT = {
    "test_sqlite_session_close_closes_worker_thread_connections": CONNECTIONS,
    "test_sqlite_session_reaps_connections_from_exited_worker_threads": CONNECTIONS,
    "test_sqlite_session_closes_retired_connections_before_the_next_allocation": CONNECTIONS,
    "test_sqlite_session_keeps_connections_of_live_worker_threads": CONNECTIONS,
    "test_sqlite_session_rollback_failure_evicts_connection": CONNECTIONS,
    "test_sqlite_session_close_retries_quarantined_connection": CONNECTIONS,
    "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome": CONNECTIONS,
    "test_sqlite_session_file_lock_is_shared_across_instances": CONNECTIONS,
    "test_settled_pop_failure_invalidates_response_chain": CONNECTIONS,
    "test_settled_clear_failure_invalidates_response_chain": CONNECTIONS,
    "test_sqlite_session_pop_item_skips_corrupt_most_recent": DATABASE,
    "test_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows": DATABASE,
    "test_sqlite_session_get_items_limit_skips_corrupt_newest_rows": DATABASE,
    "test_sqlite_session_get_items_session_settings_limit_skips_corrupt_rows": DATABASE,
    "test_sqlite_session_failed_add_items_releases_write_lock": DATABASE,
    "test_sqlite_session_failed_clear_session_rolls_back": DATABASE,
    "test_sqlite_session_failed_pop_item_releases_write_lock": DATABASE,
    "test_suffix_transaction_rolls_back_failed_insert[sqlite]": DATABASE,
    "test_cancelled_suffix_transaction_settles_before_newer_append[sqlite]": DATABASE,
    "test_failed_encrypted_suffix_transaction_preserves_original_tokens[sqlite-": DATABASE,
    "test_handoff_resume_after_cancelled_compaction_commits": DATABASE,
    "test_encrypted_pop_authentication_is_atomic_with_concurrent_mutations": DATABASE,
    "test_encrypted_pop_wrong_key_preserves_row_identity": DATABASE,
    "test_encrypted_pop_wrong_key_preserves_recoverable_history": ISINSTANCE,
    "test_encrypted_pop_rechecks_authentication_after_expired_tail": ISINSTANCE,
    "test_encrypted_pop_cancellation_waits_for_authentication_rollback": ISINSTANCE,
}

ADVANCED = "extensions/memory/test_advanced_sqlite_session.py"
# Half of that file is about tables; these tests are about the behaviour of branches.
BRANCHING = (
    *("test_advanced_session_basic_functionality", "test_advanced_sqlite_session_closed_rejects_empty_add_items"),
    *("test_advanced_tool_name_extraction", "test_branch_specific_operations", "test_branch_usage_tracking"),
    *("test_branching_functionality", "test_conversation_structure_with_multiple_turns"),
    *("test_create_branch_from_content_uses_decoded_match", "test_empty_session_operations"),
    *("test_find_turns_by_content_filters_session_and_branch", "test_find_turns_by_content_matches_literal_text"),
    *("test_find_turns_by_content_with_escaped_text_parts", "test_find_turns_by_content_with_list_content"),
    *("test_get_conversation_turns_with_list_content", "test_get_items_explicit_limit_overrides_session_settings"),
    *("test_get_items_limit_returns_fewer_when_history_exhausted", "test_get_items_uses_session_settings_limit"),
    *("test_get_items_with_parameters", "test_json_serialization_edge_cases", "test_message_structure_tracking"),
    *("test_output_tokens_details_persisted_when_input_details_missing", "test_runner_integration_with_usage_tracking"),
    *("test_post_clear_switch_synchronizes_generation_before_next_write", "test_sequence_ordering"),
    *("test_runner_with_session_settings_override", "test_session_isolation", "test_session_settings_constructor"),
    *("test_session_settings_default", "test_session_settings_resolve", "test_tool_execution_integration"),
    *("test_tool_name_extraction", "test_tool_usage_tracking", "test_tool_usage_tracks_shell_and_patch_calls"),
    *("test_tool_usage_tracking_collapses_reserved_same_name_namespace_shape", "test_usage_tracking_storage"),
    *("test_tool_usage_tracking_counts_tool_search_output_without_matching_call",),
    *("test_tool_usage_tracking_preserves_namespaces_and_tool_search",),
    *("test_tool_usage_tracking_uses_bare_name_for_deferred_top_level_calls",),
    *("test_tool_usage_tracks_runner_shell_and_patch_calls_by_branch",),
)


def called(command: list[str]) -> None:
    """Run a command that fetches something; skip the test with the reason if it fails."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"openai-agents {VERSION} cannot be had: {error.stderr.strip()[-500:]}")
    except subprocess.TimeoutExpired:
        pytest.skip(f"fetching openai-agents {VERSION} took more than {INSTALL_SECONDS} s")


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the Python of an environment with the SDK and the requirements of its tests."""
    target = CACHE / f"openai-agents-{VERSION}"
    if not (target / "ready").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        called([sys.executable, "-m", "venv", "--clear", str(target)])
        pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        called([*pip, f"openai-agents=={VERSION}", *NEEDS])
        (target / "ready").touch()
    return target / "bin" / "python"


@pytest.fixture(scope="module")
def sources(python: Path) -> Path:
    """Return the SDK's source distribution, which contains its tests."""
    folder = CACHE / f"openai_agents-{VERSION}"
    if not folder.exists():
        pip = [str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        called([*pip, "--dest", str(CACHE), f"openai-agents=={VERSION}"])
        with tarfile.open(CACHE / f"openai_agents-{VERSION}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    return folder


def passed(python: Path, sources: Path, home: Path, *arguments: str) -> tuple[int, str]:
    """Return the number of passed tests and the last lines of pytest."""
    paths = (str(HERE.parents[1] / "src"), str(HERE))
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": os.pathsep.join(paths)}
    options = ["-q", "-p", "openai_agents_plugin", "-p", "no:cacheprovider", "--timeout", "120", "--tb", "line"]
    done = subprocess.run(
        [str(python), "-m", "pytest", *options, *arguments],
        capture_output=True,
        text=True,
        cwd=sources,
        env=environment,
        timeout=SUITE_SECONDS,
    )
    ending = done.stdout[-3000:]
    counted = re.search(r"(\d+) passed", ending)
    assert done.returncode == 0, ending + done.stderr[-1000:]
    return (int(counted[1]) if counted else 0), ending


def test_the_tests_of_sessions_and_of_runs_pass(python: Path, sources: Path, tmp_path: Path) -> None:
    """All tests that use a session of the replaced class are run, except those of its internals."""
    names = " and ".join(f"not {name.partition('[')[0]}" for name in LEFT_OUT if "[" not in name)
    exact = [f"--deselect=tests/memory/test_compaction_suffix.py::{name}" for name in LEFT_OUT if name.endswith("]")]
    exact += [
        f"--deselect=tests/memory/test_compaction_suffix.py::{name}{outer}]"
        for name in LEFT_OUT
        if name.endswith("[sqlite-")
        for outer in ("False", "True")
    ]
    count, ending = passed(python, sources, tmp_path, "-k", names, *exact, *(f"tests/{name}" for name in FILES))
    assert count >= 1323, ending


def test_the_tests_of_branches_pass(python: Path, sources: Path, tmp_path: Path) -> None:
    """These are the tests of the SDK's branching session that use its public interface."""
    tests = [f"tests/{ADVANCED}::{name}" for name in BRANCHING]
    # Our search ignores the case of É too.
    count, ending = passed(python, sources, tmp_path, "-k", "not CAF", *tests)
    assert count >= 49, ending
