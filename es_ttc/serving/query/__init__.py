"""The `query` hook: queries of ours, each rewritten to one native query.

From the request to the answer: ``clauses`` (found in a body, read), ``model`` (the language model, its answers kept),
``corpus`` (the means that rewriters get, in the caller's name), ``rewriting`` (one query: method, memory, deadline,
fallback), ``stage`` (the searches of a request).
"""
