"""Methods of the ``query`` hook: from a text to one native query, with vocabulary that the text lacks.

``base`` has the contract, ``registry`` finds methods by name, ``weighted`` has the query that all of them make.
"""
