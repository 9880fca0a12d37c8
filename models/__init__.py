"""The Promela models of the group's protocol, and what runs them: ``python -m models`` or ``make models``."""
