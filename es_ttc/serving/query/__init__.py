"""The `query` hook: `ttc` queries, each rewritten to one native query.

In the order of a search: ``clauses`` (find and parse them), ``shared_model`` (the language model and its cached
answers), ``corpus`` (the data that rewriters get, read with the caller's credentials), ``rewriting`` (one query:
method, cache, deadline, fallback), ``stage`` (the searches of a request).
"""
