"""FedAPEN, server half: average the shared model θ that participants train in an ensemble with their own.

Paper: Qin et al., KDD 2023. θ = Σ n_k θ_k / Σ n_k.
"""

from __future__ import annotations

from strategies.average import SharedModel


class FedAPEN(SharedModel):
    """Personalised ensembles with a learned weight."""
