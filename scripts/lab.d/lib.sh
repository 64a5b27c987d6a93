# What scenarios are made of. Sourced by guest.sh and shell.sh, in the kernel, as root. OUT keeps the scenario's logs.
#   step TEXT                  says what comes, with the time
#   want WHAT COMMAND...       the command must succeed; refuse: it must fail
#   wait_for SECONDS WHAT COMMAND...   until it succeeds
#   fail WHY / skip WHY        end the scenario; note TEXT goes into its line of result
# daemon.sh has start_iserd, stop_iserd, stat_of; initiator.sh login, logout, disk_of, fio_verify; suite.sh libiscsi's suite, softroce.sh
# the namespace without an RDMA device.
ADDR=192.168.77.1 ADDR6=fd00:77::1 PORT=3260
IQN=iqn.2026-12.lab.iserd:t1
ISERD_PID= CAPTURE= ISCSID= VERDICT= NOTE= OWN_ISCSID=
DMESG_OK= LOG_OK=
# Kernels without their own clock speed get more time.
SLOW=1; [ "$LAB_ON" != qemu ] || SLOW=$(cat "${OUT_ROOT:-/out}/.slow" 2>/dev/null || echo 8)
WORK=$(mktemp -d /tmp/lab.XXXXXX)
. scripts/lab.d/daemon.sh
. scripts/lab.d/initiator.sh
. scripts/lab.d/suite.sh
. scripts/lab.d/softroce.sh

step() { echo "-- $(date +%T) $*"; }
fail() { VERDICT="LAB-FAIL $*"; echo; echo "$VERDICT"; exit 1; }
skip() { VERDICT="LAB-SKIP $*"; echo; echo "$VERDICT"; exit 0; }
note() { NOTE="$NOTE${NOTE:+; }$*"; }
passed() {
	[ -z "$ISERD_PID" ] || kill -0 "$ISERD_PID" 2>/dev/null || fail "the daemon died"
	check_log
	check_dmesg
	VERDICT="LAB-OK $NOTE"; echo; echo "$VERDICT"; exit 0
}
want() { local what=$1; shift; "$@" || fail "$what (status $?: $*)"; }
refuse() { local what=$1; shift; if "$@"; then fail "$what: it succeeded: $*"; fi; }
wait_for() {
	local end=$(($(date +%s) + $1 * SLOW)) what=$2; shift 2
	until "$@" >/dev/null 2>&1; do
		[ "$(date +%s)" -lt $end ] || fail "$what did not happen: $*"
		sleep 0.2
	done
}
msec() { date +%s%3N; }

setup() {
	ulimit -l unlimited; ulimit -n 20000; ulimit -c 0
	mkdir -p /run/lock/iscsi "$OUT"
	local m
	for m in rdma_rxe rdma_cm rdma_ucm ib_uverbs ib_iser iscsi_tcp sd_mod sg; do modprobe -q $m 2>/dev/null; done
	echo "lab: begin ${SCENARIO:-}" >/dev/kmsg
	ip link add labv0 type veth peer name labv1 || fail "cannot make a veth pair"
	ip addr add $ADDR/24 dev labv0; ip -6 addr add $ADDR6/64 dev labv0 nodad
	# The MTU of RoCE is the next power of two below; headers take the rest.
	ip link set labv0 mtu 4200 up; ip link set labv1 mtu 4200 up
	rdma_up
	capture
	start_iscsid
	iscsiadm -m iface -I lab-iser --op new >/dev/null 2>&1
	iscsiadm -m iface -I lab-iser --op update -n iface.transport_name -v iser >/dev/null 2>&1 || fail "open-iscsi takes no iser interface"
}

rdma_up() {
	rdma link show labrxe0/1 >/dev/null 2>&1 || rdma link add labrxe0 type rxe netdev labv0 || fail "cannot add a soft-RoCE link"
	local i
	for i in $(seq 50); do rdma link show labrxe0/1 2>/dev/null | grep -q 'state ACTIVE' && return; sleep 0.2; done
	fail "the soft-RoCE link is not active: $(rdma link show labrxe0/1 2>&1)"
}
rdma_down() { rdma link delete labrxe0; }

# capture: a ring of two files of 20 MB; only a failure keeps it.
capture() {
	[ -z "${CAPTURE_OFF:-}" ] || return
	local filter='port 3260 or port 3261 or port 4791'
	if command -v tcpdump >/dev/null; then
		tcpdump -Z root -i any -s 256 -C 20 -W 2 -w "$WORK/capture.pcap" "$filter" >/dev/null 2>&1 & CAPTURE=$!
	elif command -v dumpcap >/dev/null; then
		dumpcap -q -i any -s 256 -b filesize:20000 -b files:2 -w "$WORK/capture.pcap" -f "$filter" >/dev/null 2>&1 & CAPTURE=$!
	fi
}

kernel_log() { dmesg 2>/dev/null | tac | sed '/lab: begin/q' | tac; }

# check_dmesg: the kernel has nothing to complain about. DMESG_OK: what a scenario provokes.
check_dmesg() {
	local bad
	bad=$(kernel_log | grep -aE 'BUG|WARNING|Oops|general protection|Call Trace|I/O error|hung task|EXT4-fs error|queue full' | grep -avE "${DMESG_OK:-^$}" | head -3)
	[ -z "$bad" ] || fail "kernel log: $bad"
}

finish() {
	local code=$? t n=0
	trap - EXIT TERM
	[ -n "$VERDICT" ] || { VERDICT="LAB-FAIL the scenario stopped with status $code"; echo; echo "$VERDICT"; }
	kernel_log >"$OUT/dmesg.log"
	# Mounts hold disks, disks hold sessions.
	grep -s " $WORK" /proc/mounts | cut -d' ' -f2 | while read -r t; do umount "$t"; done
	for t in $IQN ${IQN}b; do
		timeout 60 iscsiadm -m node -T $t -u >/dev/null 2>&1
		iscsiadm -m node -T $t -o delete >/dev/null 2>&1
	done
	if [ -n "$ISERD_PID" ]; then
		kill -TERM "$ISERD_PID" 2>/dev/null
		while kill -0 "$ISERD_PID" 2>/dev/null && [ $((n += 1)) -lt 100 ]; do sleep 0.1; done
		kill -9 "$ISERD_PID" 2>/dev/null
	fi
	iscsiadm -m iface -I lab-iser --op delete >/dev/null 2>&1
	[ -z "$OWN_ISCSID" ] || kill "$OWN_ISCSID" 2>/dev/null
	[ -z "$CAPTURE" ] || { sleep 0.3; kill "$CAPTURE" 2>/dev/null; wait "$CAPTURE" 2>/dev/null; }
	case $VERDICT in LAB-OK* | LAB-SKIP*) ;; *) cp "$WORK"/capture* "$OUT/" 2>/dev/null; kernel_log >"$OUT/dmesg.log" ;; esac
	rdma link delete labrxe0 2>/dev/null; ip link del labv0 2>/dev/null; ip netns del labsr 2>/dev/null; ip netns del labsp 2>/dev/null
	rm -rf "$WORK" ${NOFREE_DIR:+"$NOFREE_DIR"}
	exit $code
}
