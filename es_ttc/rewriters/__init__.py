"""Methods of the ``query`` hook: from a text to one native query, with additional vocabulary.

``base`` has the contract, ``registry`` finds methods by name, ``weighted`` has the query that they all build.
"""
