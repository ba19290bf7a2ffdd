"""Devices by name: memory, arithmetic, bandwidth, as their vendor's data sheets give them."""

from __future__ import annotations

from dataclasses import dataclass

from dapo.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """gib: memory as it can be used. tflops: bfloat16, dense (no sparsity). bandwidth: of memory, GB/s."""

    gib: float
    tflops: float
    bandwidth: float


# NVIDIA's data sheets of each product; memory in GiB is what the driver shows, a little under the name's GB.
DEVICES = {
    "a100-40gb": Device(gib=39.4, tflops=312, bandwidth=1555),
    "a100-80gb": Device(gib=79.1, tflops=312, bandwidth=2039),
    "h100": Device(gib=79.1, tflops=989, bandwidth=3350),
    "h200": Device(gib=139.8, tflops=989, bandwidth=4800),
    "l40s": Device(gib=44.5, tflops=362, bandwidth=864),
    "rtx-4090": Device(gib=23.5, tflops=165, bandwidth=1008),
}


def device(name: str) -> Device:
    """A known device. Raises UserError."""
    found = DEVICES.get(name.lower())
    if found is None:
        raise UserError(
            f"--gpu {name}: not in the table ({', '.join(DEVICES)}); give --gpu-memory, --gpu-tflops and "
            "--gpu-bandwidth"
        )
    return found
