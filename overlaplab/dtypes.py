"""Element types as traces spell them, by torch's names, and their sizes."""

from __future__ import annotations

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "complex128": 16,
    "complex64": 8,
    "complex32": 4,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
}
"""Bytes per element; types smaller than a byte are left out."""

# c10/core/ScalarType.h has two names for a type: `Input type` in a trace is the C++ type, the `dtype` of collectives is
# the enumerator. People write `bf16` into run.json.
_SPELLINGS = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "c10::half": "float16",
    "c10::bfloat16": "bfloat16",
    "c10::complex<double>": "complex128",
    "c10::complex<float>": "complex64",
    "c10::complex<c10::half>": "complex32",
    "complexdouble": "complex128",
    "complexfloat": "complex64",
    "complexhalf": "complex32",
    "long": "int64",
    "long int": "int64",
    "int64_t": "int64",
    "int": "int32",
    "int32_t": "int32",
    "short": "int16",
    "short int": "int16",
    "int16_t": "int16",
    "char": "int8",
    "signed char": "int8",
    "int8_t": "int8",
    "unsigned char": "uint8",
    "byte": "uint8",
    "uint8_t": "uint8",
    "uint16_t": "uint16",
    "unsigned short": "uint16",
    "uint32_t": "uint32",
    "unsigned int": "uint32",
    "uint64_t": "uint64",
    "unsigned long": "uint64",
}


def torch_dtype(spelling: str) -> str:
    """torch's name (`bfloat16`) of a type (`BFloat16`, `c10::BFloat16`, `torch.bfloat16`); others in lower case."""
    word = spelling.strip().lower().removeprefix("torch.")
    return _SPELLINGS.get(word, word.removeprefix("c10::"))


def dtype_bytes(spelling: str) -> int | None:
    """Bytes of an element of a type, as `torch_dtype` reads it; None of an unknown one."""
    return DTYPE_BYTES.get(torch_dtype(spelling))
