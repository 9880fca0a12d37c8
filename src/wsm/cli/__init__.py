"""The command line: ``wsm``. One module per command, or per group of close ones.

========================  =============================================================================
module                    responsible for
========================  =============================================================================
:mod:`.main`              the entry point: which commands there are, and how the process ends
:mod:`._base`             what all share: loading on demand, help, options, printing, how a command fails
:mod:`.commanding`        ``wsm clear``, ``wsm update``, ``wsm hold``, ``wsm release``
:mod:`._interruption`     Ctrl-C, SIGTERM and SIGHUP while a group is being commanded
:mod:`.status`            ``wsm status``, with :mod:`._screen`
:mod:`.rollout`           ``wsm rollout``
:mod:`._remote`           ``wsm --url``: a group that is commanded through its server
:mod:`.serving`           ``wsm serve``, and what it shares with ``wsm rollout --http``
:mod:`.demo`              ``wsm demo``
:mod:`.snapshots`         ``wsm inspect``, ``wsm convert``
:mod:`.journal`           ``wsm journal``, ``wsm trace``
:mod:`.metrics`           ``wsm metrics``: what Prometheus scrapes
:mod:`.diagrams`          ``wsm diagrams``
:mod:`.drawings`          what it draws: states, phases and plans as Mermaid and Markdown
:mod:`.explain`           ``wsm explain``
:mod:`.memory_plan`       ``wsm memory``: what a load would need
:mod:`.deltas`            ``wsm delta``
:mod:`.adopting`          ``wsm adopt``
:mod:`.digests`           ``wsm digest``, ``wsm verify``, ``wsm diff``, of what :mod:`._digest_targets` finds
:mod:`._groups`           which groups there are; finding one by its name, and reading its configuration
:mod:`.errors`            what can be wrong with a command
========================  =============================================================================

Nothing here is needed by a program: whatever a command does is a call to the public API.
"""
