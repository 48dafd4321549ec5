"""Uploads a folder to the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from crammed.errors import InputError, first_line
from crammed.export.card import HUB_NAME
from crammed.extras import import_extra


class Repository:
    """A model on the hub to upload to; it is made, and private, unless it is there.

    Raises:
        InputError: the name is none, huggingface_hub is missing, or nobody is logged in.
    """

    def __init__(self, name: str) -> None:
        if not re.fullmatch(HUB_NAME, name):
            raise InputError(f"--push {name}: name a model on the hub as OWNER/NAME")
        self._name = name
        self._hub: Any = import_extra("huggingface_hub", "hf", "--push").HfApi()
        self._asked("whoami")

    def upload(self, folder: Path) -> str:
        """Upload the files of a folder as one commit; returns where the model is.

        Raises:
            InputError: the hub refuses, or is out of reach.
        """
        where = self._asked("create_repo", repo_id=self._name, private=True, exist_ok=True)
        message = "Upload a model made with crammed"
        files = {"folder_path": str(folder), "commit_message": message}
        self._asked("upload_folder", repo_id=self._name, **files)
        return str(where)

    def _asked(self, what: str, **options: Any) -> Any:
        try:
            return getattr(self._hub, what)(**options)
        except Exception as error:  # of the network, the hub or its client
            reason, failed, advice = first_line(error), "the upload failed", "try again"
            if reason.startswith("Invalid metadata"):  # of the card; the reason is below
                reason, failed = " ".join(str(error).split()), "the hub refused"
                advice = "choose another --license or --language"
            elif re.search(r"\b40[13]\b|\b[Tt]oken\b", str(error)):
                failed = "the hub refused"
                advice = "log in with hf auth login, with a token that may write there"
            raise InputError(
                f"--push {self._name}: {failed} ({reason.rstrip('.')}); {advice}"
            ) from error
