"""Rankings learned from judgements: trees over blend's signals, written by `es-ttc train rank`."""

from es_ttc.rescorers.learned.rescorer import LearnedRescorer

__all__ = ["LearnedRescorer"]
