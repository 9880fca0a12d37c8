"""Requests for text of a group of ``wsm rollout``.

:mod:`.data_routes` answers ``/generate`` and ``/v1/completions``, :mod:`._text_bodies` reads and forms their
bodies, :mod:`.engine_requests` has those that are open, over one connection to the group.
"""
