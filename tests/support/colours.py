"""How colours look to people who confuse some of them, how far apart they are, and how well they read."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BLINDNESSES: dict[str, npt.NDArray[np.float64]] = {
    "none": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
"""What each makes of linear RGB, at full severity (Machado, Oliveira, Fernandes, IEEE TVCG 2009, table of matrices)."""

_GREY_CHROMA = 0.045
"""Greys have less: their hue is hardly seen."""
_TO_CONES = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
_TO_CONES += [[0.0883024619, 0.2817188376, 0.6299787005]]
_TO_LAB = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099]]
_TO_LAB += [[0.0259040371, 0.7827717662, -0.8086757660]]


def distance(one: str, other: str, blindness: str = "none") -> float:
    """How far apart two colours (`#RRGGBB`) look: Euclidean in Oklab (Ottosson 2020), where about 0.02 is just seen and
    black is 1 from white.
    """
    seen = [_oklab(BLINDNESSES[blindness] @ _linear(tone)) for tone in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))


def hue(tone: str) -> float | None:
    """The hue in Oklab, in degrees; None of a grey."""
    _, red, yellow = _oklab(_linear(tone))
    return None if np.hypot(red, yellow) < _GREY_CHROMA else float(np.degrees(np.arctan2(yellow, red)))


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2, from 1 to 21."""
    lights = sorted(float(_linear(tone) @ [0.2126, 0.7152, 0.0722]) + 0.05 for tone in (one, other))
    return lights[1] / lights[0]


def _linear(tone: str) -> npt.NDArray[np.float64]:
    values = np.array([int(tone[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def _oklab(rgb: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    lab: npt.NDArray[np.float64] = np.array(_TO_LAB) @ np.cbrt(np.array(_TO_CONES) @ np.clip(rgb, 0, 1))
    return lab
