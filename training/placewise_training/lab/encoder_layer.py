"""A Transformer layer whose attention is biased by relations between tokens. Knows no features and trains nothing."""

from torch import Tensor, nn, softmax


class BiasedLayer(nn.Module):
    """Pre-norm encoder layer. A layer that derives from it says how relations change the attention's scores."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        self.width, self.heads = width, heads
        self.before_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.before_dense = nn.LayerNorm(width)
        self.dense = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def biased(self, scores: Tensor, *relations: Tensor) -> Tensor:
        """(B, H, P, P) the scores with the relations added."""
        raise NotImplementedError

    def forward(self, x: Tensor, *relations: Tensor) -> Tensor:
        x = x + self.mix(self._attend(self.before_attention(x), relations))
        out: Tensor = x + self.dense(self.before_dense(x))
        return out

    def _attend(self, x: Tensor, relations: tuple[Tensor, ...]) -> Tensor:
        batch, count, _ = x.shape
        qkv = self.qkv(x).reshape(batch, count, 3, self.heads, self.width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, H, P, D/H)
        scores = query @ key.transpose(2, 3) / (self.width // self.heads) ** 0.5  # (B, H, P, P)
        mixed = softmax(self.biased(scores, *relations), dim=3) @ value
        joined: Tensor = mixed.transpose(1, 2).reshape(batch, count, self.width)
        return joined
