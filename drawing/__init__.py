"""The pictures of this repository: ``python -m drawing`` writes ``diagrams/``, ``--check`` compares it.

The states, the phases and the plans are drawn by :mod:`wsm.cli.diagrams`, which a user has, too
(``wsm diagrams``); here is what only a reviewer of wsm reads. In this order:

==================  =========================================================================
module              responsible for
==================  =========================================================================
:mod:`.engine`      an engine that has everything, derived
:mod:`.pages`       ``transitions.md``, ``command.md`` and the page that leads through all
:mod:`.group_page`  ``group.md``: the rows by which the group's side decides
:mod:`.sequences`   what is said in clear, update, hot update, when a rank is lost, in a restore
:mod:`.dialogues`   sequence diagrams as data and as Mermaid
:mod:`.files`       all texts in one call; write them, or say how they differ
:mod:`.site_links`  what the pages of the site link to outside of ``docs/``
==================  =========================================================================
"""
