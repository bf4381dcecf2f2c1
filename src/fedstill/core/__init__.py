"""The contract: methods, records, random streams and the loop. Knows no data set and no paper."""
