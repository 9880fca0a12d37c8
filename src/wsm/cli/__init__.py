"""The command line: ``wsm``. One module per command, or per group of close ones.

========================  =============================================================================
module                    responsible for
========================  =============================================================================
:mod:`.main`              the entry point: which commands there are, and how the process ends
:mod:`._base`             what all share: loading on demand, help, options, printing, how a command fails
:mod:`.commanding`        ``wsm clear``, ``wsm update`` and their like; what Ctrl-C does to them
:mod:`.trying`            ``wsm try``: a group of two processes, shown at work
:mod:`.doctor`            ``wsm doctor``: what this host has of what wsm can use
:mod:`.status`            ``wsm status``
:mod:`._remote`           ``wsm --url``: a group that is commanded through its server
:mod:`.serving`           ``wsm serve``
:mod:`.fleet`             ``wsm fleet``: many replicas, brought to one version
:mod:`.vllm`              ``wsm vllm serve``: vLLM's server with wsm in it
:mod:`.examples`          ``wsm rollout``, ``wsm demo``: where the reference engine and its demo are
:mod:`.snapshots`         ``wsm inspect``, ``wsm convert``, ``wsm delta``
:mod:`.journal`           ``wsm journal``, ``wsm trace``
:mod:`.metrics`           ``wsm metrics``: what Prometheus scrapes
:mod:`.diagrams`          ``wsm diagrams``: states, phases and plans as Mermaid and Markdown
:mod:`.explain`           ``wsm explain``
:mod:`.memory_plan`       ``wsm memory``: what a load would need
:mod:`.adopting`          ``wsm adopt``
:mod:`.digests`           ``wsm digest``, ``wsm verify``, ``wsm diff``
:mod:`._groups`           which groups there are; finding one by its name, and reading its configuration
========================  =============================================================================

Nothing here is needed by a program: whatever a command does is a call to the public API.
"""
