"""`python -m fedstill` is the command `fedstill`."""

from fedstill.cli import main

main()
