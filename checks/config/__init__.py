"""muon-check config: what outside the optimizer's arithmetic would make two runs differ."""
