"""muon-check record: make the folder of a recorded Megatron run."""
