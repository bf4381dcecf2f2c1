"""Networks for texts: a bag of words, a convolutional one, and a small transformer.

All take numbers of tokens (batch, length), or what `embed` makes of them (batch, length, embedding): so texts that a
generator imagines, which are embeddings, enter where real ones do.
"""

import torch
from torch import Tensor, nn

from fedstill.core.classifier import Classifier
from fedstill.data.kinds import Tokens
from fedstill.models.registry import models


class TextClassifier(Classifier):
    """An embedding, then whatever follows it (abstract)."""

    takes = ("tokens",)

    def __init__(self, kind: Tokens, classes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(kind.vocabulary, kind.embedding, padding_idx=0)
        self.width = width
        self.head = nn.Linear(width, classes)

    def embed(self, x: Tensor) -> Tensor:
        """The embeddings of tokens; embeddings as they are."""
        if x.is_floating_point():
            return x
        vectors: Tensor = self.embedding(x)
        return vectors


@models.register("bag")
class BagOfWords(TextClassifier):
    """The mean embedding of the words, and a hidden layer of 64; after fastText (Joulin et al., 2017)."""

    def __init__(self, kind: Tokens, classes: int) -> None:
        super().__init__(kind, classes, 64)
        self.hidden = nn.Sequential(nn.Linear(kind.embedding, 64), nn.ReLU())

    def features(self, x: Tensor) -> Tensor:
        """The feature vectors (batch, 64) of the texts x."""
        features: Tensor = self.hidden(mean_word(self.embed(x)))
        return features


@models.register("textcnn")
class TextCNN(TextClassifier):
    """Convolutions of 3, 4 and 5 words, 32 each, and the largest answer of each over the text (Kim, 2014)."""

    def __init__(self, kind: Tokens, classes: int) -> None:
        sizes = [size for size in (3, 4, 5) if size <= kind.length] or [kind.length]
        super().__init__(kind, classes, 32 * len(sizes))
        self.ways = nn.ModuleList(nn.Conv1d(kind.embedding, 32, size) for size in sizes)

    def features(self, x: Tensor) -> Tensor:
        """The feature vectors (batch, 96) of the texts x."""
        words = self.embed(x).transpose(1, 2)
        return torch.cat([way(words).relu().amax(2) for way in self.ways], 1)


@models.register("transformer")
class SmallTransformer(TextClassifier):
    """Two layers of four heads with learnt positions; features are the mean over the words (Vaswani et al., 2017)."""

    def __init__(self, kind: Tokens, classes: int) -> None:
        width = kind.embedding
        super().__init__(kind, classes, width)
        self.positions = nn.Parameter(0.02 * torch.randn(kind.length, width))
        heads = 4 if width % 4 == 0 else 1
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)

    def features(self, x: Tensor) -> Tensor:
        """The feature vectors (batch, embedding) of the texts x."""
        words = self.embed(x)
        there = (words != 0).any(2)
        there = there | ~there.any(1, keepdim=True)  # an empty text attends to its empty places
        seen: Tensor = self.norm(self.layers(words + self.positions, src_key_padding_mask=~there))
        share = there.unsqueeze(2).to(seen.dtype)
        return (seen * share).sum(1) / share.sum(1)


def mean_word(words: Tensor) -> Tensor:
    """The mean of a text's embeddings, without the empty places behind it (whose embedding is 0)."""
    there = (words != 0).any(2, keepdim=True).to(words.dtype)
    return (words * there).sum(1) / there.sum(1).clamp(min=1)
