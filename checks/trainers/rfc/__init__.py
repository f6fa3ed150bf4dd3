"""The Muon of RFC-0023's Megatron, which is not public, in torch: for a real Megatron-Core model.

Each option is an argument of that trainer: ``muon_split_head`` and ``muon_split_linear_fc1`` cut
projections into matrices of their own, ``muon_weight_decay_norm_params`` lets norms decay, and
``muon_batch_update_size`` matrices of one shape go through Newton-Schulz together.
"""
