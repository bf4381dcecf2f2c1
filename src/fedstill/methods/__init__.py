"""The methods, one file each; importing this registers them all.

The package is their registry too: `fs.methods["fedavg"]`, `list(fs.methods)`, `@fs.methods.register("mine")`.
"""

import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from fedstill.core.method import Method
from fedstill.core.method import methods as _registry
from fedstill.methods.ccvr import CCVR as CCVR
from fedstill.methods.centralised import Centralised as Centralised
from fedstill.methods.co_boosting import CoBoosting as CoBoosting
from fedstill.methods.dafkd import DaFKD as DaFKD
from fedstill.methods.dense import DENSE as DENSE
from fedstill.methods.ds_fl import DSFL as DSFL
from fedstill.methods.fedavg import FedAvg as FedAvg
from fedstill.methods.feddf import FedDF as FedDF
from fedstill.methods.feddistill import FedDistill as FedDistill
from fedstill.methods.feddistill_plus import FedDistillPlus as FedDistillPlus
from fedstill.methods.feddyn import FedDyn as FedDyn
from fedstill.methods.fedftg import FedFTG as FedFTG
from fedstill.methods.fedgen import FedGen as FedGen
from fedstill.methods.fedgh import FedGH as FedGH
from fedstill.methods.fedgkd import FedGKD as FedGKD
from fedstill.methods.fedhe import FedHe as FedHe
from fedstill.methods.fedhkd import FedHKD as FedHKD
from fedstill.methods.fedkd import FedKD as FedKD
from fedstill.methods.fedkf import FedKF as FedKF
from fedstill.methods.fedkf import FedKFMinus as FedKFMinus
from fedstill.methods.fedlc import FedLC as FedLC
from fedstill.methods.fedmd import FedMD as FedMD
from fedstill.methods.fedmgda_plus import FedMGDAPlus as FedMGDAPlus
from fedstill.methods.fednova import FedNova as FedNova
from fedstill.methods.fedntd import FedNTD as FedNTD
from fedstill.methods.fedproto import FedProto as FedProto
from fedstill.methods.fedprox import FedProx as FedProx
from fedstill.methods.fedrad import FedRAD as FedRAD
from fedstill.methods.fedsteady import FedSteady as FedSteady
from fedstill.methods.fedtgp import FedTGP as FedTGP
from fedstill.methods.fedtkd import FedTKD as FedTKD
from fedstill.methods.fml import FML as FML
from fedstill.methods.lg_fedavg import LGFedAvg as LGFedAvg
from fedstill.methods.local import Local as Local
from fedstill.methods.moon import Moon as Moon
from fedstill.methods.qffl import QFFL as QFFL
from fedstill.methods.scaffold import Scaffold as Scaffold

METHODS = [
    name for name, cls in globals().items() if isinstance(cls, type) and issubclass(cls, Method) and cls != Method
]
"""The names of their classes, which `import fedstill` offers too."""

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
