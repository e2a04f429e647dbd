#!/usr/bin/env bash
# Runs a test binary, which ends with this shell, and prints the user and system time that it took: the go
# command does not tell the CPU time of each package. test/run reads the line. GOGC was meant for the go command.
unset GOGC
TIMEFORMAT='CPU time: %U %S'
time setpriv --pdeathsig KILL "$@"
