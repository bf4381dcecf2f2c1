"""The methods, one file each; importing this registers them all."""

from fedstill.methods.fedavg import FedAvg
from fedstill.methods.feddistill_plus import FedDistillPlus
from fedstill.methods.fedgkd import FedGKD
from fedstill.methods.fedkf import FedKF, FedKFMinus
from fedstill.methods.fedprox import FedProx
from fedstill.methods.fedrad import FedRAD
from fedstill.methods.fedtkd import FedTKD
from fedstill.methods.moon import Moon
from fedstill.methods.qffl import QFFL
from fedstill.methods.scaffold import Scaffold

__all__ = [
    "QFFL",
    "FedAvg",
    "FedDistillPlus",
    "FedGKD",
    "FedKF",
    "FedKFMinus",
    "FedProx",
    "FedRAD",
    "FedTKD",
    "Moon",
    "Scaffold",
]
