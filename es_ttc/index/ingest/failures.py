"""The cause of a failed group of tasks."""

from es_ttc.errors import EsTtcError


def cause_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the failure that ended a group of tasks, an error of this project first."""
    leaves: list[BaseException] = []
    stack: list[BaseException] = [group]
    while stack:
        error = stack.pop()
        if isinstance(error, BaseExceptionGroup):
            stack.extend(error.exceptions)
        else:
            leaves.append(error)
    return next((error for error in leaves if isinstance(error, EsTtcError)), leaves[0])
