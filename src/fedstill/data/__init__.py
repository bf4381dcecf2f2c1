"""Samples, where they come from, and how they are divided over clients."""

from fedstill.data.natural import BySite as BySite
from fedstill.data.natural import Given as Given
from fedstill.data.natural import Saved as Saved
from fedstill.data.partition import IID as IID
from fedstill.data.partition import Dirichlet as Dirichlet
from fedstill.data.partition import Dominant as Dominant
from fedstill.data.partition import EqualSize as EqualSize
from fedstill.data.partition import Partition as Partition
from fedstill.data.partition import Quantity as Quantity
from fedstill.data.partition import Rebalanced as Rebalanced
from fedstill.data.partition import Shards as Shards
from fedstill.data.partition import Split as Split
from fedstill.data.partition import local_split as local_split
from fedstill.data.partition import matching_test as matching_test
from fedstill.data.partition import partitions as partitions
from fedstill.data.partition import public_split as public_split
from fedstill.data.reading import Reading as Reading
from fedstill.data.samples import Dataset as Dataset
from fedstill.data.samples import Samples as Samples
from fedstill.data.samples import batches as batches
from fedstill.data.sources import datasets as datasets
from fedstill.data.sources import load as load
from fedstill.data.sources import load_clients as load_clients
from fedstill.data.sources import located as located
from fedstill.data.sources import pool as pool
