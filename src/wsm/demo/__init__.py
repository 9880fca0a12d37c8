"""The main job at small scale: a policy that is trained while a live rollout group serves it.

``loop`` is the one module that knows group, trainer and files at once. ``task`` and ``trainer`` are the
learning, ``trainer_process`` its process; ``report``, ``timeline``, ``trace``, ``picture`` and ``progress``
are what a run shows and leaves behind.
"""
