"""Small real LoRA adapters of MiniLM, random but the same at every run.

peft takes seconds to import, so it is imported where one is made.
"""

from pathlib import Path

from es_ttc.encoders.hashing import FileHashes
from es_ttc.encoders.packages import minilm_for_torch


def make_adapter(folder: Path, seed: int, *, cache: Path) -> Path:
    """Write an adapter of MiniLM's attention, as peft saves it.

    Args:
        folder: Where; made if missing.
        seed: Of its weights.
        cache: For file hashes.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    base = AutoModel.from_pretrained(minilm_for_torch(FileHashes(cache)).folder, local_files_only=True)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value"]))
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "lora_" in name:
                weights.copy_(torch.randn(weights.shape, generator=random) * 0.1)
    model.save_pretrained(str(folder))
    return folder
