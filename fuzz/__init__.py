"""Bytes that no writer vouches for, thrown at everything that reads such bytes: ``python -m fuzz``.

For every format (:mod:`fuzz.formats`): any bytes give one typed error or a value that can be written and read
again, in bounded memory and time (:mod:`fuzz.invariant`). Hypothesis draws damage to good samples; atheris,
where it is installed, lets coverage guide it.
"""
