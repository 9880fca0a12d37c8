"""What reaches a model, by which check, and how fast: the one place that writes weights.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
apply                                 an offer written into a target: checks first, then bytes
coverage                              which tensors must come, which may be missing, which are one
admission                             whether there is memory for it
tensor_copy                           tensors copied and digested in one pass, on threads
memory_target                         a target in plain memory, with versions beside one another in it
feeding                               a checkpoint fed to models' own loaders; which names are MTP's
tensor_set                            which tensors the last checkpoint brought
tensor_ledger                         what a rank found in its memory, for comparing groups
====================================  ====================================================================
"""
