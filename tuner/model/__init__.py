"""What the parts of `tune` talk about: frozen dataclasses, standard library only."""
