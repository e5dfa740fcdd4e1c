"""How the libraries are to behave, said before they are imported."""

from __future__ import annotations

import os
import socket
import sys
import warnings
from urllib.parse import urlsplit
from urllib.request import getproxies

_QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def prepare_libraries() -> None:
    """Errors only, and no retries of a hub that cannot be reached; what the user has set stays."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if not sys.warnoptions:  # what libraries tell one another about their next version
        warnings.simplefilter("ignore", FutureWarning)
        # peft, when it saves an adapter of a model from a GGUF file.
        warnings.filterwarnings("ignore", "Could not find a config file", UserWarning)
    if "HF_HUB_OFFLINE" not in os.environ and not _hub_has_address():
        os.environ["HF_HUB_OFFLINE"] = "1"


def _hub_has_address() -> bool:
    if getproxies():
        return True
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        return bool(socket.getaddrinfo(host, 443))
    except OSError:
        return False
