"""Tables made from runs."""
