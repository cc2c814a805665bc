"""Methods of the ``query`` hook: from a text to one native query, with additional vocabulary."""
