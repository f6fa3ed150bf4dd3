"""muon-check routing: how Megatron trained each parameter, and how MaxText would."""
