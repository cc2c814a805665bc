"""What a gateway does about Python's garbage, in a process of its own: this one's objects are frozen."""

import subprocess
import sys

import pytest

SHOWN = "print(gc.get_freeze_count() > 0, gc.get_threshold()[0])"


def printed(*statements: str) -> list[str]:
    program = "; ".join(
        (
            "import gc",
            "gc.set_threshold(700, 10, 10)",
            "from es_ttc.serving.warm_up import restore_garbage, settle_garbage",
            *statements,
        )
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


def test_gateway_freezes_loaded_objects_until_it_ends() -> None:
    assert printed("settle_garbage()", SHOWN, "restore_garbage()", SHOWN) == ["True 100000", "False 700"]


def test_two_gateways_of_one_process_freeze_once() -> None:
    assert printed("settle_garbage()", "settle_garbage()", "restore_garbage()", SHOWN) == ["False 700"]


@pytest.mark.parametrize("settled", ["settle_garbage()", "pass"])
def test_gateway_leaves_objects_frozen_before_it_frozen(settled: str) -> None:
    assert printed("gc.freeze()", settled, "restore_garbage()", SHOWN) == ["True 700"]
