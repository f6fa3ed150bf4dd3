"""``muon-check parity``: the ladder, on built-in data or on a recorded run."""
