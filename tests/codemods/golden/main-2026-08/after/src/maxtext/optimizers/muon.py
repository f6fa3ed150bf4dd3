"""A Muon of its own, wired to nothing yet."""


def muon(learning_rate, **kwargs):
  """Not used."""
  raise NotImplementedError
