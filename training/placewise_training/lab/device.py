"""Chooses the device of a trainer. Moves nothing itself."""

import torch


def chosen_device(asked: str = "") -> torch.device:
    """The device asked for; if none, a GPU if PyTorch can use one, else the CPU."""
    return torch.device(asked or ("cuda" if torch.cuda.is_available() else "cpu"))
