"""A name that Flower imports and does not use here."""


class ActorPool:
    """The base of a class that is not used."""
