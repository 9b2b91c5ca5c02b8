"""Network: a causal transformer over candles that respects the price mirror exactly.

Every layer carries two streams. The *even* one does not change when all prices are mirrored, the *odd* one flips its
sign. Odd values meet even ones only as factors (gates, attention weights) and enter the even stream only as absolute
values, so the parity holds to the last bit, in the forward pass and in training, with one evaluation instead of two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Sizes of a Network; ``width`` (d_model) is split in halves between the even and the odd stream.

    ``gain`` multiplies the outputs, whose layer starts at zero: a fresh network says 0 and learns gently.
    """

    even_inputs: int
    odd_inputs: int
    even_outputs: int
    odd_outputs: int
    window: int
    width: int = 32
    layers: int = 1
    heads: int = 2
    feedforward: int = 32
    dropout: float = 0.0
    gain: float = 0.25
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} does not split into two streams of {self.heads} heads")


class Network(nn.Module):
    """Read a window of tokens, answer even and odd outputs about what follows the last one."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        half = config.width // 2
        self.config = config
        self.even_embed = nn.Linear(config.even_inputs, half)
        self.odd_embed = nn.Linear(config.odd_inputs, half, bias=False)
        self.position = nn.Parameter(torch.zeros(config.window, half))  # the last row is the newest candle
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.even_norm = nn.LayerNorm(half)
        self.odd_norm = OddNorm(half)
        self.even_head = nn.Linear(half, config.even_outputs)
        self.odd_head = nn.Linear(half, config.odd_outputs, bias=False)
        self._initialise()

    def forward(self, even: Tensor, odd: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Answer (B, even_outputs) and (B, odd_outputs) for tokens (B, T, even_inputs) and (B, T, odd_inputs).

        T is at most the window; shorter ones stand at its end.
        ``mask`` (boolean: True may be seen; float: added to the scores) broadcasts to (B, heads, T, T) and is taken
        together with causality.
        """
        even, odd = self.encode(even, odd, mask, last_only=True)
        even, odd = self.even_norm(even[:, -1]), self.odd_norm(odd[:, -1])
        return self.config.gain * self.even_head(even), self.config.gain * self.odd_head(odd)

    def encode(
        self, even: Tensor, odd: Tensor, mask: Tensor | None = None, last_only: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Run the layers: two streams (B, T, width / 2); with ``last_only`` their last position, for less work."""
        length = even.shape[1]
        even = self.even_embed(even) + self.position[-length:]
        odd = self.odd_embed(odd)
        if mask is not None or not last_only or len(self.blocks) > 1:  # the last position alone may see everything
            mask = causal_mask(length, mask, even.device)
        for number, block in enumerate(self.blocks):
            last = last_only and number == len(self.blocks) - 1
            if self.config.gradient_checkpointing and torch.is_grad_enabled():
                even, odd = checkpoint(block, even, odd, mask, last, use_reentrant=False, preserve_rng_state=True)
            else:
                even, odd = block(even, odd, mask, last)
        return even, odd

    def _initialise(self) -> None:
        nn.init.normal_(self.position, std=0.02)
        nn.init.zeros_(self.even_head.weight)
        nn.init.zeros_(self.even_head.bias)
        nn.init.zeros_(self.odd_head.weight)


class Block(nn.Module):
    """One pre-norm layer: attention, then feed-forward, each for both streams."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        half = config.width // 2
        self.heads, self.dropout = config.heads, config.dropout
        self.even_norm, self.odd_norm = nn.LayerNorm(half), OddNorm(half)
        self.query = nn.Linear(half, config.width)
        self.key = nn.Linear(half, config.width)
        self.even_value, self.odd_value = nn.Linear(half, half), nn.Linear(half, half, bias=False)
        self.even_mix, self.odd_mix = nn.Linear(half, half), nn.Linear(half, half, bias=False)
        self.feedforward = FeedForward(config)

    def forward(self, even: Tensor, odd: Tensor, mask: Tensor | None, last_only: bool) -> tuple[Tensor, Tensor]:
        even_in, odd_in = self.even_norm(even), self.odd_norm(odd)
        asking = even_in[:, -1:] if last_only else even_in
        if last_only:
            even, odd = even[:, -1:], odd[:, -1:]
            mask = mask if mask is None or mask.shape[-2] == 1 else mask[..., -1:, :]
        even_seen, odd_seen = self._attend(asking, even_in, odd_in, mask)
        even = even + self._drop(self.even_mix(even_seen))
        odd = odd + self._drop(self.odd_mix(odd_seen))
        even_out, odd_out = self.feedforward(even, odd)
        return even + self._drop(even_out), odd + self._drop(odd_out)

    def _attend(self, asking: Tensor, even: Tensor, odd: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        # Who looks at whom is decided by the even stream alone, so the odd values pass linearly.
        values = torch.cat((self._split(self.even_value(even)), self._split(self.odd_value(odd))), dim=-1)
        seen = F.scaled_dot_product_attention(
            self._split(self.query(asking)),
            self._split(self.key(even)),
            values,
            attn_mask=mask if mask is None or mask.dtype == torch.bool else mask.to(values.dtype),
            dropout_p=self.dropout if self.training else 0.0,
        )
        even_seen, odd_seen = seen.chunk(2, dim=-1)
        return _join(even_seen), _join(odd_seen)

    def _split(self, values: Tensor) -> Tensor:
        return values.view(*values.shape[:2], self.heads, -1).transpose(1, 2)  # (B, heads, T, each)

    def _drop(self, values: Tensor) -> Tensor:
        return F.dropout(values, self.dropout, self.training) if self.dropout else values


class FeedForward(nn.Module):
    """Gated feed-forward of both streams: |odd| feeds the even one, even values gate the odd one."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        half, hidden = config.width // 2, config.feedforward
        self.even_norm, self.odd_norm = nn.LayerNorm(half), OddNorm(half)
        self.even_up, self.gate = nn.Linear(half, hidden), nn.Linear(half, hidden)
        self.odd_up = nn.Linear(half, hidden, bias=False)
        self.even_down, self.odd_down = nn.Linear(hidden, half), nn.Linear(hidden, half, bias=False)

    def forward(self, even: Tensor, odd: Tensor) -> tuple[Tensor, Tensor]:
        even, odd = self.even_norm(even), self.odd_up(self.odd_norm(odd))
        even_hidden = F.gelu(self.even_up(even) + odd.abs())
        return self.even_down(even_hidden), self.odd_down(odd * torch.sigmoid(self.gate(even)))


class OddNorm(nn.Module):
    """Scale odd values to unit mean square; without a mean to subtract, the sign stays."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, odd: Tensor) -> Tensor:
        # In the values' own precision: torch warns of mixed ones.
        return F.rms_norm(odd, self.weight.shape, self.weight.to(odd.dtype))


def causal_mask(length: int, mask: Tensor | None, device: torch.device) -> Tensor:
    """Join causality with a boolean or float mask of any shape that broadcasts to (B, heads, length, length)."""
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    if mask is None:
        return causal
    if mask.dtype == torch.bool:
        return causal & mask
    return mask.masked_fill(~causal, float("-inf"))


def _join(values: Tensor) -> Tensor:
    return values.transpose(1, 2).flatten(2)
