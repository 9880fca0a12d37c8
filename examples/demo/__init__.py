"""The main job at small scale: a policy that is trained while a live rollout group serves it.

``loop`` is the one module that knows group, trainer and files at once; it removes what an old run left.
``trainer`` is the learning, ``trainer_process`` its process. ``report`` and ``picture`` are what a run shows
and leaves behind. ``settings`` are what a run was asked for, and the task. ``command`` is its command line.
"""
