"""The main job at small scale: a policy that is trained while a live rollout group serves it.

``loop`` is the one module that knows group, trainer and files at once. ``task`` and ``trainer`` are the
learning, ``trainer_process`` its process; ``report``, ``timeline``, ``trace``, ``picture`` and ``progress``
are what a run shows and leaves behind.

``settings`` are what a run was asked for, ``journal_spans`` turns journals into spans of time, ``leftovers``
removes what an earlier run left, ``errors`` is what can go wrong. ``run`` is the entry.
"""
