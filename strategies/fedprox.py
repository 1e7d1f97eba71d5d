"""FedProx, server half: average as FedAvg does.

Paper: Li et al., MLSys 2020, arXiv 1812.06127. What is its own is the participants' loss.
"""

from strategies.fedavg import FedAvg


class FedProx(FedAvg):
    """Federated optimisation in heterogeneous networks."""
