"""Names of the options of layers. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal, get_args

PaddingMode = Literal["zeros", "circular", "longitude"]
PADDING_MODES: tuple[PaddingMode, ...] = get_args(PaddingMode)

Order = Literal["score", "index", "families"]
ORDERS: tuple[Order, ...] = get_args(Order)

BiasOwner = Literal["expert", "slot"]
BIAS_OWNERS: tuple[BiasOwner, ...] = get_args(BiasOwner)

GateInit = Literal["kaiming", "paper", "smooth", "uniform"]
GATE_INITS: tuple[GateInit, ...] = get_args(GateInit)

Combiner = Literal["rows_and_columns", "table", "input"]
COMBINERS: tuple[Combiner, ...] = get_args(Combiner)
