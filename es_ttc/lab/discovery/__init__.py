"""A program search (section 3 and appendix A of the paper on programs) on a user's own data.

:mod:`.loop` is Algorithm 1 and uses the other modules: :mod:`.proposers` write programs, :mod:`.screening` checks the
paper's constraints, :mod:`.evaluator` runs programs in the sandbox and measures them on :mod:`.tasks`, :mod:`.records`
stores every result, :mod:`.summary` selects the programs that are worth their cost. Programs that an operator promotes
(:mod:`.promotion`) are served by the gateway.
"""
