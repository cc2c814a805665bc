"""What a child process should think of signals."""

import signal


def hear_ctrl_c() -> None:
    """Give a child (as ``preexec_fn``) Ctrl-C's usual meaning, which a background job of a shell would not have."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_ctrl_c() -> None:
    """Give a child (as ``preexec_fn``) what a background job of a shell has: Ctrl-C means nothing to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
