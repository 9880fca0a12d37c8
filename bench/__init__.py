"""What wsm costs, measured side by side with what FastDeploy does, in one run on one machine.

``python -m bench`` (``make bench``) prints a table and writes ``bench.json``. ``serving``, ``acceptance`` and
``cycle`` each measure one thing with real processes; ``legacy`` and ``gloo_signal`` re-enact what FastDeploy
does, from the facts. ``loading`` holds every way for weights to arrive against plain copies, and can be run
alone: ``python -m bench.loading``. ``walks`` counts the functions that one version walks through on each way.
"""
