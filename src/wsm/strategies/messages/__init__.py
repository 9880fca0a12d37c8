"""What peers say to each other in framed, length-checked messages, and what goes wrong between them.

:mod:`~wsm.strategies.messages.frames` turns messages into bytes and back and knows no message by name;
:mod:`~wsm.strategies.messages.errors` has the errors of every peer that streams.
"""
