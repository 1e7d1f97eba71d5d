"""The methods: what each is, which keys it has, what it needs of a scenario, and what it may send.

``strategy`` and ``client`` are strings that are resolved late, so that this module imports neither side.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedapps.errors import UserError
from fedapps.hints import nearest

if TYPE_CHECKING:
    from fedapps.scenario import Scenario

Record = Mapping[str, str] | str
"""One record on the wire: tensor names with their shapes in symbols, e.g. ``{"image": "P d"}``, or the name
of a layout that both sides can work out (a state dict), e.g. ``"server encoder"``. All tensors are float32
unless the layout says otherwise."""


@dataclass(frozen=True)
class Exchange:
    """What one phase may carry: records down to a participant and up to the server, and names of metrics up.

    Test metrics are those of the tasks and need not be named.
    """

    down: Mapping[str, Record] = field(default_factory=dict)
    up: Mapping[str, Record] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    tests: bool = False  # whether the phase may end with a test, as ``evaluate`` does


class Params(BaseModel):
    """Keys of one method; in a run-config they carry the method's name, e.g. ``fedafd.sed-temperature``."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
        validate_by_name=True,
    )

    def shared_dim(self, dim: int) -> int:
        """Representation size of the shared model, where ``dim`` is that of the scenario."""
        return dim

    def sizes(self, public: int) -> dict[str, int]:
        """The method's own symbols in shapes, for so many public samples."""
        return {}

    def problems(self, scenario: Scenario, drawn: int) -> Iterator[str]:
        """What does not fit the scenario, of whose participants a round draws ``drawn``; each line starts with the
        key's name."""
        yield from ()

    @property
    def shares_head(self) -> bool:
        """Whether the shared model travels with its head."""
        return True

    @property
    def hangs_on_rounds(self) -> bool:
        """Whether each round depends on how many there will be: then a run cannot be continued for more."""
        return False


@dataclass(frozen=True)
class Needs:
    """What a scenario must have for a method to run on it."""

    public: bool = False  # public data
    server_modalities: tuple[str, ...] = ()  # of the server's task on them; empty: it needs none
    server_tasks: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()  # of participants; empty: any
    same_model: bool = False  # all participants of a modality have one and the same model
    towers: bool = False  # all models are `unified`, those of one modality alike, and all of one size
    shared: bool = False  # a `shared` model for each modality of the participants


@dataclass(frozen=True)
class Method:
    """One published algorithm: a server half and a client half."""

    title: str
    paper: str
    strategy: str
    client: str
    params: type[Params] = Params
    needs: Needs = Needs()
    wire: Mapping[str, Exchange] = field(default_factory=dict)
    controls: tuple[str, ...] = ()  # prefixes of test metrics of other ways to use the participant's models

    def load_strategy(self) -> Any:
        """The ``Strategy`` class of the server half."""
        return resolve(self.strategy)

    def load_client(self) -> Any:
        """The ``ClientApp`` of the client half."""
        return resolve(self.client)


def resolve(path: str) -> Any:
    """What ``module:name`` names; ``UserError`` with the reason where it cannot be imported."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        told = " ".join(str(error).split())  # one line
        raise UserError(f"{path} cannot be loaded: {type(error).__name__}: {told}") from error


class FedAFDParams(Params):
    """FedAFD. The objective is the paper's, the numbers are those of the released code; flags restore its ways."""

    baa: bool = Field(True, description="bi-level adversarial alignment (ablation switch)")
    gff: bool = Field(True, description="granularity-aware feature fusion (ablation switch)")
    sed: bool = Field(True, description="similarity-guided ensemble weights; false: plain mean (ablation switch)")
    beta: float = Field(0.5, ge=0, description="weight of the adversarial loss")
    gamma: float = Field(0.4, ge=0, description="weight of the server's distillation loss")
    order: Literal["joint", "separate"] = Field(
        "joint", description="one objective as in the paper, or the released code's separate epochs"
    )
    kd_metric: Literal["l2", "mse"] = Field("l2", description="distance of the distillation loss")
    sed_temperature: float = Field(1.0, gt=0, description="temperature of the similarity softmax")
    gff_persist: bool = Field(False, description="keep the fusion module between rounds; false: new each round")
    gff_reuse_t2: bool = Field(False, description="second fusion level re-uses T2 (released code)")
    gff_learning_rate: float = Field(5e-3, gt=0, description="Adam step of the fusion module")
    gff_weight_decay: float = Field(0.01, ge=0, description="weight decay of the fusion module")
    double_sigmoid: bool = Field(False, description="sigmoid before BCE-with-logits (released code)")
    shared_discriminators: bool = Field(
        False, description="one pair of discriminators for both modalities of a participant (released code)"
    )
    discriminator_learning_rate: float = Field(1e-4, gt=0, description="Adam step of the discriminators")


class FedMRLParams(Params):
    """FedMRL. Defaults are the paper's."""

    d1: int = Field(100, ge=1, description="representation size of the shared small model")
    m_global: float = Field(1.0, ge=0, description="weight of the loss of the shared model's head")
    m_local: float = Field(1.0, ge=0, description="weight of the loss of the participant's own head")
    variant: Literal["mrl", "mrl-e"] = Field(
        "mrl", description="mrl-e: no shared head; the own head's first d1 columns read the coarse representation"
    )

    def shared_dim(self, dim: int) -> int:
        return self.d1

    def problems(self, scenario: Scenario, drawn: int) -> Iterator[str]:
        if self.d1 > scenario.dim:
            yield f"d1: {self.d1} is more than the scenario's dim {scenario.dim}, of which it is a part"

    @property
    def shares_head(self) -> bool:
        return self.variant == "mrl"


class FMLParams(Params):
    """FML. Defaults are those of the released code."""

    alpha: float = Field(0.5, ge=0, le=1, description="weight of the labels for the own model, the rest for the meme")
    beta: float = Field(0.5, ge=0, le=1, description="weight of the labels for the meme, the rest for the own model")


class FDParams(Params):
    """FD."""

    weight: float = Field(1.0, ge=0, description="weight λ of the loss against the others' mean outputs")


class FedProtoParams(Params):
    """FedProto. The default is that of the authors' code."""

    weight: float = Field(1.0, ge=0, description="weight λ of the distance to the global prototypes")


class FedAPENParams(Params):
    """FedAPEN. Defaults are those of the released code."""

    held_out: float = Field(0.05, gt=0, lt=1, description="share of the private rows that the weight is learned on")
    weight_epochs: int = Field(10, ge=0, description="steps of the weight in a round")
    weight_learning_rate: float = Field(1e-3, gt=0, description="SGD step of the weight")


class FedMuscleParams(Params):
    """FedMuscle. Temperatures are the paper's; it does not name its epochs and learning rates."""

    loss: Literal["muscle", "pairwise", "gramian"] = Field(
        "muscle", description="what a batch of representations is held against others with; the last two are rivals"
    )
    num_sampled: int = Field(3, ge=1, description="M: others that a participant is held against")
    epochs: int = Field(1, ge=1, description="T: contrastive epochs on public data in a round")
    batch_size: int = Field(32, ge=2, description="B: public samples in a contrastive step")
    learning_rate: float = Field(1e-3, gt=0, description="AdamW step of the contrastive phase")
    tau: float = Field(0.2, gt=0, description="τ^(N): temperature of a participant against others")
    tau_prev: float = Field(0.15, gt=0, description="τ^(N-1): temperature among the others; below tau")
    sync: Literal["epoch", "batch"] = Field(
        "epoch", description="one exchange an epoch, so that others' representations are of its start; or one a batch"
    )
    wire: Literal["matrices", "grad", "tuples"] = Field(
        "matrices",
        description="what comes down: the others' representations, the loss's gradient (needs sync=batch), or the "
        "paper's message of a row for each of B^M tuples",
    )
    views: int = Field(
        0, ge=0, description="each sees another random one of so many views of a public sample; 0: the sample itself"
    )
    learn_tau: bool = Field(False, description="learn τ^(N), each participant its own (beyond the paper)")

    @model_validator(mode="after")
    def _consistent(self) -> FedMuscleParams:
        if self.tau_prev >= self.tau:
            raise ValueError(f"tau-prev: must be below tau, which is {self.tau}, not {self.tau_prev}")
        if self.num_sampled * (self.num_sampled - 1) * (1 / self.tau_prev - 1 / self.tau) > 700:
            raise ValueError(
                f"tau-prev: {self.tau_prev} with {self.num_sampled} others is beyond float64; take more, or a tau "
                f"nearer to it than {self.tau}"
            )
        if self.wire == "grad" and self.sync != "batch":
            raise ValueError("wire: grad is the gradient of one step; it needs sync=batch")
        if self.wire == "tuples" and self.loss != "muscle":
            raise ValueError(f"wire: tuples is a message of the muscle loss, not of {self.loss}")
        if self.wire == "tuples" and self.batch_size**self.num_sampled > 2**20:
            raise ValueError(
                f"wire: {self.batch_size}^{self.num_sampled} tuples are too many, 2^20 is the most; take wire=matrices"
            )
        if self.learn_tau and (self.wire != "matrices" or self.loss == "gramian"):
            raise ValueError("learn-tau: needs wire=matrices, and loss=muscle or pairwise")
        return self

    def sizes(self, public: int) -> dict[str, int]:
        """``B`` samples in a step, ``K`` in an exchange (whole steps only), ``M`` others."""
        batch = min(self.batch_size, public)
        return {"B": batch, "K": batch if self.sync == "batch" else public // batch * batch, "M": self.num_sampled}

    def problems(self, scenario: Scenario, drawn: int) -> Iterator[str]:
        if self.num_sampled > drawn - 1:
            where = f"a participant of {scenario.name} has {drawn - 1} others in a round"
            yield f"num-sampled: {self.num_sampled} asked, {where}"


class SimCLRParams(Params):
    """SimCLR on public data, as FedMuscle's contrastive phase without the others."""

    epochs: int = Field(1, ge=1, description="T: contrastive epochs on public data in a round")
    batch_size: int = Field(32, ge=2, description="B: public samples in a contrastive step")
    learning_rate: float = Field(1e-3, gt=0, description="AdamW step of the contrastive phase")
    tau: float = Field(0.2, gt=0, description="temperature")
    views: int = Field(16, ge=2, description="random views that a public sample has; two are drawn in each step")

    def sizes(self, public: int) -> dict[str, int]:
        """``B`` samples in a step."""
        return {"B": min(self.batch_size, public)}


class CoFEDParams(Params):
    """CoFED. Defaults are those of the released code."""

    margin: float = Field(
        0.3, ge=0, lt=1, description="a pseudo-label's probability exceeds the second's by more than this"
    )
    threshold: float = Field(
        0.3, ge=0, lt=1, description="α: a sample is of a class if more than this share of the class's owners say so"
    )


class FedHeNNParams(Params):
    """FedHeNN. The default of eta is that of the released code, which takes 1000 samples."""

    eta: float = Field(0.01, ge=0, description="η_0: the weight of 1 - CKA in round t is η_0 √t")
    samples: int = Field(64, ge=3, description="l: public samples of a round's Gram matrices, all in each step")

    def sizes(self, public: int) -> dict[str, int]:
        """``K`` samples in an exchange, the paper's l."""
        return {"K": min(self.samples, public)}


class SAGEParams(Params):
    """SAGE. Defaults are the paper's."""

    confidence: float = Field(0.95, ge=0, le=1, description="probability from which a teacher counts")
    kappa: float = Field(
        math.log(2) / 0.05, ge=0, description="κ: λ = exp(-κδ) halves with each ln 2 / κ of difference in confidence"
    )
    views: int = Field(16, ge=1, description="random views that a public sample has; one is drawn in each step")


class FedKDParams(Params):
    """FedKD. Defaults are the paper's."""

    t_start: float = Field(0.95, gt=0, le=1, description="energy that a matrix of the update keeps in the first round")
    t_end: float = Field(0.98, gt=0, le=1, description="energy that it keeps in the last round")

    @property
    def hangs_on_rounds(self) -> bool:
        return self.t_start != self.t_end


class FedProxParams(Params):
    """FedProx. The default of mu is that of FedCola's comparison."""

    mu: float = Field(0.001, ge=0, description="weight µ of the proximal term")
    norm: Literal["l2sq", "l2"] = Field(
        "l2sq", description="µ/2 Σ ‖w - w_t‖², or a norm for each tensor that is not squared (FedCola's released code)"
    )


class FedIoTParams(Params):
    """FedIoT. The default is that of the authors' code."""

    alpha: float = Field(100.0, gt=0, description="α: weight of a sample of participants with several modalities")


class FedColaParams(Params):
    """FedCola. Defaults are the paper's; three switches for its ablation, the last for its released code."""

    collab: bool = Field(True, description="attention is averaged across types of participants (ablation switch)")
    compensate: bool = Field(
        True, description="all else moves by the attention's share of the own type; needs collab (ablation switch)"
    )
    complementary: bool = Field(
        True, description="one modality's participants train with the other's weights W_out (ablation switch)"
    )
    aux: Literal["attn", "mlp", "all"] = Field("all", description="linear layers of a block that W_out comes for")
    aux_trainable: bool = Field(True, description="W_out is trained too, not only its gate g")
    aux_send: Literal["whole", "changes"] = Field(
        "whole", description="changes: of a layer whose W_out the participant has already, bit for bit, only a hash"
    )
    aggregate: Literal["mean", "sequential"] = Field(
        "mean", description="true means, or each participant in turn pulls at what those before it left (released code)"
    )


HEAD = {"weight": "C d", "bias": "C"}
REPRESENTATIONS = {"image": "P d", "text": "P d"}

ALIGNMENT: dict[str, Record] = {
    "rows": "public rows",
    "others": "others",
    "gradient": {"z": "K d", "loss": "", "others": ""},
    "tuples": "tuples",
}
"""What a contrastive step needs: which public samples, and one of three messages on the others."""

ALONE = Exchange(metrics=("task_loss",), tests=True)
"""Training of participants whose labels nobody else has: nothing crosses."""

WHOLE_MODEL = {
    "train": Exchange(down={"model": "own model"}, up={"model": "own model"}, metrics=("task_loss",)),
    "evaluate": Exchange(down={"model": "own model"}),
}

METHODS: dict[str, Method] = {
    "local": Method(
        title="Local",
        paper="no exchange: every participant alone, the server on public data alone",
        strategy="strategies.local:Local",
        client="clients.local:app",
        wire={"train": Exchange(metrics=("task_loss",), tests=True), "evaluate": Exchange()},
    ),
    "fedafd": Method(
        title="FedAFD",
        paper="CVPR 2026, arXiv 2603.04890",
        strategy="strategies.fedafd:FedAFD",
        client="clients.fedafd:app",
        params=FedAFDParams,
        needs=Needs(
            public=True,
            server_modalities=("image", "text"),
            server_tasks=("retrieval",),
            tasks=("classification", "multilabel", "retrieval"),
        ),
        wire={
            "train": Exchange(
                down={"features": REPRESENTATIONS, "encoder": "server encoder"},
                up={"features": REPRESENTATIONS},
                metrics=("task_loss", "adversarial_loss", "discriminator_loss"),
                tests=True,
            ),
            "evaluate": Exchange(),
        },
        controls=("local", "global"),
    ),
    "fedavg": Method(
        title="FedAvg",
        paper="AISTATS 2017, arXiv 1602.05629",
        strategy="strategies.fedavg:FedAvg",
        client="clients.fedavg:app",
        needs=Needs(same_model=True, tasks=("classification", "multilabel", "retrieval")),
        wire=WHOLE_MODEL,
    ),
    "fedprox": Method(
        title="FedProx",
        paper="MLSys 2020, arXiv 1812.06127",
        strategy="strategies.fedprox:FedProx",
        client="clients.fedprox:app",
        params=FedProxParams,
        needs=Needs(same_model=True, tasks=("classification", "multilabel", "retrieval")),
        wire=WHOLE_MODEL,
    ),
    "fediot": Method(
        title="FedIoT",
        paper="Multimodal Federated Learning on IoT Data, IoTDI 2022, arXiv 2109.04833",
        strategy="strategies.fediot:FedIoT",
        client="clients.fediot:app",
        params=FedIoTParams,
        needs=Needs(towers=True, same_model=True, tasks=("classification", "multilabel", "retrieval")),
        wire=WHOLE_MODEL,
    ),
    "fedcola": Method(
        title="FedCola",
        paper="ECCV 2024, arXiv 2404.12467",
        strategy="strategies.fedcola:FedCola",
        client="clients.fedcola:app",
        params=FedColaParams,
        needs=Needs(towers=True, same_model=True, tasks=("classification", "multilabel", "retrieval")),
        wire={
            "train": Exchange(
                down={"model": "own model", "aux": "auxiliary weights", "same": "auxiliary hashes"},
                up={"model": "own model"},
                metrics=("task_loss", "gate"),
            ),
            "evaluate": Exchange(down={"model": "own model"}),
        },
    ),
    "lg-fedavg": Method(
        title="LG-FedAvg",
        paper="2020, arXiv 2001.01523",
        strategy="strategies.lgfedavg:LGFedAvg",
        client="clients.lgfedavg:app",
        needs=Needs(tasks=("classification",)),
        wire={
            "train": Exchange(down={"head": HEAD}, up={"head": HEAD}, metrics=("task_loss",)),
            "evaluate": Exchange(down={"head": HEAD}),
        },
    ),
    "fd": Method(
        title="FD",
        paper="2018, arXiv 1811.11479",
        strategy="strategies.fd:FD",
        client="clients.fd:app",
        params=FDParams,
        needs=Needs(tasks=("classification",)),
        wire={
            "train": Exchange(
                down={"targets": {"means": "C C"}},
                up={"outputs": {"means": "C C", "counts": "C"}},
                metrics=("task_loss", "distillation_loss"),
                tests=True,
            ),
            "evaluate": Exchange(),
        },
    ),
    "fedproto": Method(
        title="FedProto",
        paper="AAAI 2022, arXiv 2105.00243",
        strategy="strategies.fedproto:FedProto",
        client="clients.fedproto:app",
        params=FedProtoParams,
        needs=Needs(tasks=("classification",)),
        wire={
            "train": Exchange(
                down={"prototypes": {"means": "C d", "known": "C"}},
                up={"prototypes": {"means": "C d", "counts": "C"}},
                metrics=("task_loss", "prototype_loss"),
            ),
            "evaluate": Exchange(down={"prototypes": {"means": "C d", "known": "C"}}),
        },
        controls=("prototype",),
    ),
    "fml": Method(
        title="FML",
        paper="2020, arXiv 2006.16765",
        strategy="strategies.fml:FML",
        client="clients.fml:app",
        params=FMLParams,
        needs=Needs(shared=True, tasks=("classification",)),
        wire={
            "train": Exchange(
                down={"shared": "shared model"}, up={"shared": "shared model"}, metrics=("task_loss", "meme_loss")
            ),
            "evaluate": Exchange(down={"shared": "shared model"}),
        },
        controls=("shared",),
    ),
    "fedapen": Method(
        title="FedAPEN",
        paper="KDD 2023",
        strategy="strategies.fedapen:FedAPEN",
        client="clients.fedapen:app",
        params=FedAPENParams,
        needs=Needs(shared=True, tasks=("classification",)),
        wire={
            "train": Exchange(
                down={"shared": "shared model"},
                up={"shared": "shared model"},
                metrics=("task_loss", "shared_loss", "ensemble_weight"),
            ),
            "evaluate": Exchange(down={"shared": "shared model"}),
        },
        controls=("local", "shared"),
    ),
    "fedkd": Method(
        title="FedKD",
        paper="Nature Communications 2022, arXiv 2108.13323",
        strategy="strategies.fedkd:FedKD",
        client="clients.fedkd:app",
        params=FedKDParams,
        needs=Needs(shared=True, tasks=("classification",)),
        wire={
            "train": Exchange(
                down={"shared": "shared model"},
                up={"update": "low-rank shared model"},
                metrics=("task_loss", "mentee_loss"),
            ),
            "evaluate": Exchange(down={"shared": "shared model"}),
        },
        controls=("shared",),
    ),
    "fedmrl": Method(
        title="FedMRL",
        paper="NeurIPS 2024, arXiv 2406.00488",
        strategy="strategies.fedmrl:FedMRL",
        client="clients.fedmrl:app",
        params=FedMRLParams,
        needs=Needs(shared=True, tasks=("classification",)),
        wire={
            "train": Exchange(down={"shared": "shared model"}, up={"shared": "shared model"}, metrics=("task_loss",)),
            "evaluate": Exchange(down={"shared": "shared model"}),
        },
        controls=("mix_small", "single_small", "single_large"),
    ),
    "fedmuscle": Method(
        title="FedMuscle",
        paper="ICLR 2026, arXiv 2602.01626",
        strategy="strategies.fedmuscle:FedMuscle",
        client="clients.fedmuscle:app",
        params=FedMuscleParams,
        needs=Needs(public=True, tasks=("classification", "multilabel", "segmentation")),
        wire={
            "represent": Exchange(down={"next": "public rows"}, up={"public": "representations"}),
            "align": Exchange(
                down={"next": "public rows", **ALIGNMENT},
                up={"public": "representations"},
                metrics=("contrastive_loss", "tc_bound"),
            ),
            "train": Exchange(down=ALIGNMENT, metrics=("task_loss", "contrastive_loss", "tc_bound"), tests=True),
            "evaluate": Exchange(),
        },
    ),
    "simclr": Method(
        title="SimCLR",
        paper="ICML 2020, arXiv 2002.05709: no exchange, two views of public data",
        strategy="strategies.simclr:SimCLR",
        client="clients.simclr:app",
        params=SimCLRParams,
        needs=Needs(public=True, tasks=("classification", "multilabel", "segmentation")),
        wire={"train": Exchange(metrics=("task_loss", "contrastive_loss"), tests=True), "evaluate": Exchange()},
    ),
    "cofed": Method(
        title="CoFED",
        paper="2022, arXiv 2202.08603",
        strategy="strategies.cofed:CoFED",
        client="clients.cofed:app",
        params=CoFEDParams,
        needs=Needs(public=True, tasks=("classification", "multilabel", "segmentation")),
        wire={
            "alone": ALONE,
            "train": Exchange(
                down={"targets": "pseudo-labels"},
                up={"votes": "pseudo-labels", "owned": {"classes": "C"}},
                metrics=("task_loss", "pseudo_loss", "pseudo_labelled"),
                tests=True,
            ),
            "evaluate": Exchange(),
        },
    ),
    "fedhenn": Method(
        title="FedHeNN",
        paper="ICML 2022, arXiv 2202.07757",
        strategy="strategies.fedhenn:FedHeNN",
        client="clients.fedhenn:app",
        params=FedHeNNParams,
        needs=Needs(public=True, tasks=("classification", "multilabel", "segmentation")),
        wire={
            "train": Exchange(
                down={"rows": "public rows", "target": {"K": "K K"}, "next": "public rows"},
                up={"gram": {"K": "K K"}},
                metrics=("task_loss", "cka_distance"),
                tests=True,
            ),
            "evaluate": Exchange(),
        },
    ),
    "sage": Method(
        title="SAGE",
        paper="CVPR 2025, arXiv 2503.13227: its form for different models with the same labels",
        strategy="strategies.sage:SAGE",
        client="clients.sage:app",
        params=SAGEParams,
        needs=Needs(public=True, tasks=("classification", "multilabel", "segmentation")),
        wire={
            "alone": ALONE,
            "train": Exchange(
                down={"teacher": {"p": "P C"}},
                up={"public": {"p": "P C"}},
                metrics=("task_loss", "unlabelled_loss", "confident"),
                tests=True,
            ),
            "evaluate": Exchange(),
        },
    ),
}


def method(algo: str) -> Method:
    """The method named ``algo``; raises ``UserError`` with the nearest name otherwise."""
    if algo not in METHODS:
        raise UserError(f"algo: there is no method '{algo}'{nearest(algo, METHODS)}")
    return METHODS[algo]
