"""FML, server half: average the meme model θ that participants train beside their own.

Paper: Shen et al., "Federated Mutual Learning", 2020, arXiv 2006.16765. θ = Σ n_k θ_k / Σ n_k.
"""

from __future__ import annotations

from strategies.average import SharedModel


class FML(SharedModel):
    """Federated mutual learning: own and meme model teach each other."""
