"""Which tests stay together, and in which order they begin, where several processes share a run's (``pytest -n``).

A file stays together: what its fixtures make is made once. So do the files of a folder whose nodes are its own; and a
file of few, long, independent tests does not.
"""

from typing import Any

import pytest

BY_PRODUCT = ("tests/plugin/", "tests/ingest/test_recovery.py")
"""Of which each product's tests stay together, by the product in a test's name: they share nodes of their own."""
TOGETHER = ("tests/evaluation/test_through_engine.py", "tests/evaluation/test_programs_", "tests/evaluation/test_rewri")
"""Files that stay together: one looks for temporary indices, the others make some."""
FOLDERS = ("tests/serving/security/",)
"""Folders that stay together: their tests share a node of their own."""
KILLED = (
    "tests/jobs/test_workers.py::test_job_with_processes_killed_enriches_every_document_once",
    "tests/jobs/test_workers.py::test_followed_writes_with_processes_killed_are_encoded_once",
    "tests/attach/test_killed.py::test_an_engine_that_is_killed",
    "tests/ingest/test_engine_killed.py",
    "tests/serving/test_engine_faults.py",
    "tests/faults/test_ingest_disk_full.py",
)
"""What kills or fills the same node: `own_node`."""
APART = ("tests/jobs/test_workers.py", "tests/discovery/test_loop.py")
"""Files whose tests share nothing."""
FIRST = (
    *TOGETHER,
    "tests/ingest/test_recovery.py",
    *KILLED,
    "tests/plugin/",
    "tests/docker/",
    "tests/serving/test_workers.py",
    "tests/encoders/test_backends.py",
    "tests/cli/test_ingest.py",
    "tests/engine/node/test_life.py",
    "tests/cli/test_demo.py",
    "tests/docs/test_quick_start.py",
    "tests/faults/test_three_nodes.py",
    "tests/serving/security/",
    "tests/training/",
    "tests/serving/writes/",
    "tests/faults/test_slow_clients.py",
    "tests/faults/test_cold_windows.py",
    "tests/attach/test_writers.py",
    "tests/serving/test_greatest_window.py",
    "tests/serving/test_frameworks.py",
    "tests/jobs/",
    "tests/ingest/test_kill.py",
    "tests/discovery/test_loop.py",
)
"""What takes long, the longest first: begun last, it would be waited for while others have nothing left to do."""
LAST = ("tests/faults/test_fuzz.py", "tests/faults/test_long_requests.py", "tests/faults/test_pool_turns.py")
"""What measures how long clients wait: together and at the end, when the others have nothing left to do."""

SLOW = (
    "tests/cli/test_demo.py",
    "tests/cli/test_evaluate.py",
    "tests/cli/test_tune.py",
    "tests/demo/test_stdlib.py",
    "tests/discovery/test_grammar.py",
    "tests/discovery/test_llm.py",
    "tests/discovery/test_loop.py",
    "tests/discovery/test_promotion.py",
    "tests/discovery/test_sandbox.py",
    "tests/docker/test_docker_build.py",
    "tests/encoders/test_adapters.py",
    "tests/encoders/test_backends.py",
    "tests/encoders/test_cache.py",
    "tests/encoders/test_kind.py",
    "tests/encoders/test_late.py",
    "tests/encoders/test_registry.py",
    "tests/encoders/test_vllm.py",
    "tests/faults/test_credentials_in_arguments.py",
    "tests/faults/test_hostile_candidates.py",
    "tests/faults/test_promoted_processes.py",
    "tests/rescorers/test_limit_small.py",
    "tests/serving/test_late.py",
    "tests/training/",
)
"""Files that load torch or several models, train, search programs, or start many processes: `slow`, all of them."""


def slow(path: str) -> bool:
    """Whether the tests of a file, or a test, are slow by the file that they stand in."""
    return path.startswith(SLOW)


def scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler of pytest-xdist that keeps tests together as it is said here, in the order of `rank`."""
    from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

        def _reschedule(self, node: Any) -> None:
            """Give a process more to do if it has little, or let it end.

            A process begins a test when it knows what comes next. One that replaces another is given one unit: of a
            single test, or of none that is left, it would wait for ever.
            """
            super()._reschedule(node)
            while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
                super()._reschedule(node)

    config.option.loadscopereorder = False
    return Scheduling(config, log)


def scope(nodeid: str) -> str:
    """Return the name of what a test stays together with."""
    path, _, test = nodeid.partition("::")
    for begin in BY_PRODUCT:
        if path.startswith(begin):
            return f"{begin} {'elasticsearch' if 'elasticsearch' in test else 'opensearch'}"
    for group in (TOGETHER, KILLED, LAST):
        if nodeid.startswith(group):
            return group[0]
    return next((folder for folder in FOLDERS if path.startswith(folder)), nodeid if path in APART else path)


def rank(nodeid: str) -> int:
    """Return a place: tests with a lower one begin earlier."""
    if nodeid.startswith(LAST):
        return len(FIRST) + 1
    return next((place for place, begin in enumerate(FIRST) if nodeid.startswith(begin)), len(FIRST))
