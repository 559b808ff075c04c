"""Where a trainer computes. Moves nothing itself."""

import torch


def chosen_device(asked: str = "") -> torch.device:
    """The device that was asked for; where none was, a GPU if PyTorch can use one, else the CPU."""
    return torch.device(asked or ("cuda" if torch.cuda.is_available() else "cpu"))
