"""Plans of searches with a section in `rescore`: pure functions of a body and its URL parameters.

Every request that the caller must mend is refused here, before anything is sent.
"""
