"""The judge of the tests: small faults put into wsm's own code, one at a time, and what finds each.

:mod:`.operators` makes faults from Python's syntax, :mod:`.seeded` has those that somebody wrote down,
:mod:`.entries` keeps the fixed list of them with what became of each, :mod:`.playing` plays tests on one.
"""
