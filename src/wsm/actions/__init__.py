"""Units of work in a transition, the plans made of them, and the surfaces of an engine that they act on."""
