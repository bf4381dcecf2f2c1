"""The methods, one file each; importing this registers them all."""

from fedstill.methods.fedavg import FedAvg
from fedstill.methods.fedkf import FedKF, FedKFMinus
from fedstill.methods.fedprox import FedProx
from fedstill.methods.fedtkd import FedTKD

__all__ = ["FedAvg", "FedKF", "FedKFMinus", "FedProx", "FedTKD"]
