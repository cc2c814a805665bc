"""A search for programs (section 3 and appendix A of the paper on programs), on a user's own data.

:mod:`.loop` is Algorithm 1 and puts the rest together: :mod:`.proposers` write programs, :mod:`.screening` holds them
to the paper's constraints, :mod:`.sandboxed` runs them where they can do no harm, :mod:`.evaluator` measures them on
:mod:`.tasks`, :mod:`.memory` remembers every outcome, :mod:`.frontier` says which are worth their cost. What a person
promotes (:mod:`.promotion`) is served by the gateway.
"""
