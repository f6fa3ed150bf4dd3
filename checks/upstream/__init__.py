"""muon-check upstream: does the installed optax still compute what the fork follows?"""
