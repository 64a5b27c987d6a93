#!/usr/bin/env bash
# Runs in the kernel, as root: the lab's network, soft-RoCE and iscsid, then the commands of .commands or a terminal.
set -u
if [ -z "${LAB_ON:-}" ]; then
	OUT=/out
	while read -r w; do eval "export $w"; done <$OUT/.words
fi
cd "$LAB_ROOT" || exit 2
SCENARIO=shell CAPTURE_OFF=1
. scripts/lab.d/lib.sh
trap 'VERDICT=LAB-OK; finish' EXIT
setup
if [ -s "$OUT/.commands" ]; then
	. "$OUT/.commands"
else
	echo "lab: $ADDR and $ADDR6 are on soft-RoCE device labrxe0; start_iserd --lun ram:256MiB; login iser \$IQN; exit to end"
	export -f start_iserd login logout disks disk_of fio_verify fail
	export ADDR ADDR6 PORT IQN OUT ISERD SLOW LAB_ON
	bash -i
fi
