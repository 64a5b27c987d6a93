#!/usr/bin/env bash
# Runs one scenario as root, in a guest or on a host: network, soft-RoCE, iscsid, then the scenario, then the verdict.
set -u
. scripts/lab.d/lib.sh
trap 'finish' EXIT
trap 'exit 124' TERM
setup
. "scripts/lab.d/scenarios/$SCENARIO.sh"
passed
