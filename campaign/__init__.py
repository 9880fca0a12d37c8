"""Faults on real processes: everything that can die, hang, lie, tear or fill up, and what came of it.

``python -m campaign`` (``make campaign``) kills and stops ranks and controllers at every line of their
journals and inside actions, damages files and shared memory, and holds what is left to the outcomes that
the tables name. Three kinds of groups: ``memory`` (real processes, segment and snapshots around an engine in
plain memory), ``cache`` (the same beside a KV-cache process) and ``gloo`` (:mod:`examples.rollout`, paddle on
Gloo, under requests whose every token is recomputed). Families of cases (:mod:`campaign.families`): commands
about everything at once, or about weights or KV cache alone, holds, updates whose caller decides, and havoc:
several faults, at any line.
``python -m campaign endurance`` runs cycles and watches for what grows.
"""
