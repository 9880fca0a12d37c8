"""The native API, ``/wsm/v1``, for programs and operators.

:mod:`.routes` has its verbs, :mod:`.schema` the structs of their bodies and answers, :mod:`._events` what
happens to a group as server-sent events, :mod:`._openapi` the document that describes it all.
"""
