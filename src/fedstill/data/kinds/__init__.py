"""Kinds of data, one file each."""

from fedstill.data.kinds.image import Image
from fedstill.data.kinds.plain import Plain
from fedstill.data.kinds.series import Series
from fedstill.data.kinds.table import Table
from fedstill.data.kinds.tokens import Tokens

__all__ = ["Image", "Plain", "Series", "Table", "Tokens"]
