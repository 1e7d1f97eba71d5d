"""FedMRL, server half: average the small model θ that every participant trains beside its own.

Paper: NeurIPS 2024, arXiv 2406.00488. θ = Σ n_k θ_k / Σ n_k over the sampled participants k. The released code hands
on the model of the last participant instead (all uploads are one and the same object).
"""

from strategies.average import SharedModel


class FedMRL(SharedModel):
    """Model-heterogeneous federated learning with Matryoshka representations; ``fedmrl.variant`` as MRL-E."""
