"""TTC programs ("Test-Time Compute for Frozen Embedding Models through Agentic Program Search"), appendices B and D.

:mod:`.frontier` has them, :mod:`.catalogue` their costs; :mod:`.primitives` holds what they are made of;
:mod:`.interface` is the paper's ``P(Q, D, S, ctx) -> S'``, kept so that any program of that form runs here.

What the paper leaves open is decided in the docstring of the function concerned, by what the text and its costs allow,
and not by measuring: no constant here has seen a judgement.
"""
