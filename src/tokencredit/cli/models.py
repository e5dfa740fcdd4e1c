"""A model and its tokenizer from what the user calls it: a folder, a GGUF file, a hub id or a built-in policy."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.errors import UsageError
from tokencredit.tasks import TASKS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_MULTIMODAL = ("vision_config", "audio_config", "speech_config")


def load_model(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False, **settings: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The causal language model and its tokenizer, which has a pad token (its EOS where it had none).

    Args:
        name: a built-in policy's name, a folder (an adapter's too), a file ending in .gguf, or a hub id.
        revision: of a hub model.
        trust_remote_code: run code that comes with the model.
        **settings: further ones of `from_pretrained`, such as dtype.

    Raises:
        UsageError: the model cannot be found or loaded, is multimodal, or its tokenizer has no EOS token.
    """
    if _is_adapter(Path(name)):
        return _load_adapter(Path(name), trust_remote_code=trust_remote_code, **settings)
    source, where = _locate(name)
    where |= {"trust_remote_code": trust_remote_code}
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, logging

    if Path(source).exists():
        logging.disable_progress_bar()  # bars are for downloads
    else:
        where["revision"] = revision or "main"
    if "gguf_file" in where:
        settings = {**_plain_weights(), **settings}
    try:
        config = AutoConfig.from_pretrained(source, **where)
        _refuse_multimodal(config, name)
        tokenizer = AutoTokenizer.from_pretrained(source, **where)
        _mend_tokenizer(tokenizer, name)
        model = AutoModelForCausalLM.from_pretrained(source, **where, **settings)
    except UsageError:
        raise
    except (
        Exception
    ) as error:  # loaders raise anything from OSError to KeyError for a broken or missing model
        raise UsageError(_reason(name, error)) from error
    return model, tokenizer


def load_config(name: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The config alone, of what `load_model` takes, or of a config.json.

    Raises:
        UsageError: it cannot be found or read, or is that of a multimodal model.
    """
    path = Path(name).expanduser()
    source, where = (str(path), {}) if path.suffix == ".json" and path.is_file() else _locate(name)
    where |= {"trust_remote_code": trust_remote_code}
    from transformers import AutoConfig

    if not Path(source).exists():
        where["revision"] = revision or "main"
    try:
        config = AutoConfig.from_pretrained(source, **where)
    except Exception as error:  # as in `load_model`
        raise UsageError(_reason(name, error)) from error
    _refuse_multimodal(config, name)
    return config


def _is_adapter(path: Path) -> bool:
    return (path / "adapter_config.json").is_file() and not (path / "config.json").exists()


def _load_adapter(path: Path, **settings: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """What LoRA training leaves: the model that it started from, with the adapter merged into its weights."""
    if importlib.util.find_spec("peft") is None:
        raise UsageError(
            f"{path} holds an adapter, which needs the package peft: pip install 'tokencredit[peft]'"
        )
    from peft import PeftModel

    try:
        base = json.loads((path / "adapter_config.json").read_text())["base_model_name_or_path"]
        if (path / "run.json").is_file():  # it names a GGUF file where the adapter only knows the folder
            base = json.loads((path / "run.json").read_text())["model"]
        model, tokenizer = load_model(str(base), **settings)
        return PeftModel.from_pretrained(model, str(path)).merge_and_unload(), tokenizer
    except UsageError:
        raise
    except Exception as error:  # as in `load_model`
        raise UsageError(_reason(str(path), error)) from error


def _locate(name: str) -> tuple[str, dict[str, Any]]:
    """What to hand to `from_pretrained`, and its further arguments."""
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UsageError(f"no model file {name}")
        if importlib.util.find_spec("gguf") is None:
            raise UsageError(
                f"{name} is a GGUF file, which needs the package gguf: pip install 'tokencredit[gguf]'"
            )
        return str(path.parent), {"gguf_file": path.name}
    if name in TASKS and not path.exists():
        return str(TASKS[name].policy_path()), {}
    if path.is_file():
        raise UsageError(f"{name} is a file; a model is a folder, a .gguf file or a hub id")
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(f"the folder {name} holds no model: it has no config.json")
        return str(path), {}
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or not name:
        raise UsageError(f"no model folder {name!r}")
    return name, {}


def _plain_weights() -> dict[str, Any]:
    """So that a GGUF model is an ordinary one, which can be trained and saved; older versions know no other way."""
    import transformers

    gguf_config = getattr(transformers, "GgufConfig", None)
    return {"quantization_config": gguf_config(dequantize=True)} if gguf_config else {}


def _refuse_multimodal(config: Any, name: str) -> None:
    if any(getattr(config, part, None) is not None for part in _MULTIMODAL):
        raise UsageError(f"{name} ({config.model_type}) is multimodal; only models of text are supported")


def _mend_tokenizer(tokenizer: Any, name: str) -> None:
    if tokenizer.eos_token_id is None:
        raise UsageError(
            f"the tokenizer of {name} has no end-of-sequence token, so no completion could end: set eos_token in its "
            "tokenizer_config.json"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token


def _reason(name: str, error: Exception) -> str:
    if isinstance(error, OSError) and not Path(name).exists():
        return (
            f"cannot find the model {name!r}: there is no such folder here, and the hub does not have it or cannot "
            "be reached"
        )
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"cannot load the model {name!r}: {first_line}"
