"""SimCLR, server half: nothing is exchanged."""

from strategies.base import Strategy


class SimCLR(Strategy):
    """Each participant alone, with contrastive learning on public data beside its task."""
