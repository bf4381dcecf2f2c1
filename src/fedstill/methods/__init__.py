"""The methods, one file each; importing this registers them all.

The package is their registry too: `fs.methods["fedavg"]`, `list(fs.methods)`, `@fs.methods.register("mine")`.
"""

import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from fedstill.core.method import methods as _registry
from fedstill.methods.ccvr import CCVR
from fedstill.methods.centralised import Centralised
from fedstill.methods.co_boosting import CoBoosting
from fedstill.methods.dafkd import DaFKD
from fedstill.methods.dense import DENSE
from fedstill.methods.ds_fl import DSFL
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.feddf import FedDF
from fedstill.methods.feddistill import FedDistill
from fedstill.methods.feddistill_plus import FedDistillPlus
from fedstill.methods.feddyn import FedDyn
from fedstill.methods.fedftg import FedFTG
from fedstill.methods.fedgen import FedGen
from fedstill.methods.fedgh import FedGH
from fedstill.methods.fedgkd import FedGKD
from fedstill.methods.fedhe import FedHe
from fedstill.methods.fedhkd import FedHKD
from fedstill.methods.fedkd import FedKD
from fedstill.methods.fedkf import FedKF, FedKFMinus
from fedstill.methods.fedlc import FedLC
from fedstill.methods.fedmd import FedMD
from fedstill.methods.fedmgda_plus import FedMGDAPlus
from fedstill.methods.fednova import FedNova
from fedstill.methods.fedntd import FedNTD
from fedstill.methods.fedproto import FedProto
from fedstill.methods.fedprox import FedProx
from fedstill.methods.fedrad import FedRAD
from fedstill.methods.fedsteady import FedSteady
from fedstill.methods.fedtgp import FedTGP
from fedstill.methods.fedtkd import FedTKD
from fedstill.methods.fml import FML
from fedstill.methods.lg_fedavg import LGFedAvg
from fedstill.methods.local import Local
from fedstill.methods.moon import Moon
from fedstill.methods.qffl import QFFL
from fedstill.methods.scaffold import Scaffold

__all__ = [
    "CCVR",
    "DENSE",
    "DSFL",
    "FML",
    "QFFL",
    "Centralised",
    "CoBoosting",
    "DaFKD",
    "FedAvg",
    "FedDF",
    "FedDistill",
    "FedDistillPlus",
    "FedDyn",
    "FedFTG",
    "FedGH",
    "FedGKD",
    "FedGen",
    "FedHKD",
    "FedHe",
    "FedKD",
    "FedKF",
    "FedKFMinus",
    "FedLC",
    "FedMD",
    "FedMGDAPlus",
    "FedNTD",
    "FedNova",
    "FedProto",
    "FedProx",
    "FedRAD",
    "FedSteady",
    "FedTGP",
    "FedTKD",
    "LGFedAvg",
    "Local",
    "Moon",
    "Scaffold",
]

register = _registry.register


class _RegistryPackage(ModuleType, Mapping[str, Any]):
    """A package that answers by name what is registered in it."""

    __hash__ = ModuleType.__hash__
    __eq__ = ModuleType.__eq__

    def __getitem__(self, name: str) -> Any:
        return _registry[name]

    def __contains__(self, name: object) -> bool:
        return name in _registry

    def __iter__(self) -> Iterator[str]:
        return iter(_registry)

    def __len__(self) -> int:
        return len(_registry)


sys.modules[__name__].__class__ = _RegistryPackage
