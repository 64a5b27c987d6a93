# What scenarios are made of. Sourced by guest.sh. OUT (in a guest: /out) keeps logs.
[ "$LAB_ON" = host ] || OUT=/out
ADDR=192.168.77.1 ADDR6=fd00:77::1 PORT=3260
IQN=iqn.2026-12.lab.iserd:t1
ISERD_PID= CAPTURE= VERDICT= NOTE=
SLOW=1; [ "$LAB_ON" = qemu ] && SLOW=8

step() { echo "-- $(date +%T) $*"; }
fail() { VERDICT="LAB-FAIL $*"; echo "$VERDICT"; exit 1; }
skip() { VERDICT="LAB-SKIP $*"; echo "$VERDICT"; exit 0; }
note() { NOTE="$NOTE; $*"; }
passed() {
	[ -n "$ISERD_PID" ] && { kill -0 "$ISERD_PID" 2>/dev/null || fail "the daemon died"; }
	check_dmesg
	VERDICT="LAB-OK${NOTE}"; echo "$VERDICT"; exit 0
}
# want WHAT COMMAND...: the command must succeed.
want() { local what=$1; shift; "$@" || fail "$what (status $?: $*)"; }
# refuse WHAT COMMAND...: the command must fail.
refuse() { local what=$1; shift; if "$@"; then fail "$what: it succeeded: $*"; fi; }
# wait_for SECONDS WHAT COMMAND...: until the command succeeds.
wait_for() {
	local end=$(( $(date +%s) + $1 * SLOW )) what=$2; shift 2
	until "$@" >/dev/null 2>&1; do
		[ "$(date +%s)" -lt $end ] || fail "$what did not happen: $*"
		sleep 0.2
	done
}
msec() { date +%s%3N; }

setup() {
	ulimit -l unlimited; ulimit -n 20000; ulimit -c 0
	mkdir -p /run/lock/iscsi "$OUT"
	for m in rdma_rxe rdma_cm rdma_ucm ib_uverbs ib_iser iscsi_tcp sd_mod sg; do modprobe -q $m 2>/dev/null; done
	dmesg -C 2>/dev/null
	ip link add labv0 type veth peer name labv1 || fail "cannot make a veth pair"
	ip addr add $ADDR/24 dev labv0; ip -6 addr add $ADDR6/64 dev labv0 nodad
	ip link set labv0 mtu 4200 up; ip link set labv1 mtu 4200 up
	rdma_up
	wait_for 5 "the RDMA device" ls /dev/infiniband/uverbs0 || :
	if command -v tcpdump >/dev/null; then
		# A ring of two files: only a failure keeps it.
		tcpdump -i any -s 256 -C 20 -W 2 -w "/tmp/lab.pcap" 'port 3260 or port 4791 or port 3261' >/dev/null 2>&1 & CAPTURE=$!
	fi
	if ! pgrep -x iscsid >/dev/null; then
		mkdir -p /etc/iscsi
		[ -s /etc/iscsi/initiatorname.iscsi ] || echo "InitiatorName=iqn.2026-12.lab.iserd:initiator" >/etc/iscsi/initiatorname.iscsi
		iscsid -f >"$OUT/iscsid.log" 2>&1 &
		sleep 1
	fi
	iscsiadm -m iface -I lab-iser --op new >/dev/null 2>&1
	iscsiadm -m iface -I lab-iser --op update -n iface.transport_name -v iser >/dev/null 2>&1
}

rdma_up() { rdma link show labrxe0/1 >/dev/null 2>&1 || rdma link add labrxe0 type rxe netdev labv0 || fail "cannot add a soft-RoCE link"; }
rdma_down() { rdma link delete labrxe0; }

finish() {
	local code=$?
	[ -n "$VERDICT" ] || echo "LAB-FAIL the scenario stopped with status $code"
	iscsiadm -m node -u >/dev/null 2>&1
	[ -n "$ISERD_PID" ] && kill -TERM "$ISERD_PID" 2>/dev/null && wait "$ISERD_PID" 2>/dev/null
	[ -n "$CAPTURE" ] && kill "$CAPTURE" 2>/dev/null
	dmesg >"$OUT/dmesg.log" 2>/dev/null
	case $VERDICT in LAB-OK* | LAB-SKIP*) ;; *) cp /tmp/lab.pcap* "$OUT/" 2>/dev/null ;; esac
	rm -f /tmp/lab.pcap*
	if [ "$LAB_ON" = host ]; then
		iscsiadm -m node -o delete >/dev/null 2>&1
		iscsiadm -m iface -I lab-iser --op delete >/dev/null 2>&1
		rdma link delete labrxe0 2>/dev/null; ip link del labv0 2>/dev/null
	fi
	exit $code
}

# check_dmesg: the kernel has nothing to complain about.
check_dmesg() {
	local bad
	bad=$(dmesg | grep -aE 'BUG|WARNING|Oops|general protection|Call Trace|blk_update_request: I/O error|I/O error, dev|hung task|EXT4-fs error|queue full' | grep -avE "${DMESG_OK:-^$}" | head -3)
	[ -z "$bad" ] || fail "kernel log: $bad"
}

# start_iserd ARGS...: the daemon, waited for until it is ready. Without --listen: both families.
start_iserd() {
	local listen=(--listen $ADDR:$PORT --listen "[$ADDR6]:$PORT") a n
	for a in "$@"; do case $a in --listen | --config) listen=() ;; esac; done
	[[ " $* " == *" --target "* || " $* " == *" --config "* ]] || set -- --target $IQN "$@"
	n=$(grep -c 'ready' "$OUT/iserd.log" 2>/dev/null); n=${n:-0}
	bin/iserd serve --rdma verbs --state-dir /tmp/iserd-state "${listen[@]}" "$@" >>"$OUT/iserd.out" 2>>"$OUT/iserd.log" &
	ISERD_PID=$!
	local end=$(( $(date +%s) + 20 * SLOW ))
	until [ "$(grep -c 'ready' "$OUT/iserd.log")" -gt "$n" ]; do
		kill -0 $ISERD_PID 2>/dev/null || fail "the daemon did not start: $(tail -1 "$OUT/iserd.log")"
		[ "$(date +%s)" -lt $end ] || fail "the daemon is not ready after 20 s"
		sleep 0.1
	done
}
# start_iserd_config FILE: all from a configuration file.
start_iserd_config() { start_iserd --config "$1"; }
stop_iserd() { kill -TERM "$ISERD_PID"; wait "$ISERD_PID"; local c=$?; ISERD_PID=; [ $c = 0 ] || fail "the daemon ended with status $c"; }

# login TRANSPORT IQN [ADDR] [PORT]
login() {
	local iface=default addr=${3:-$ADDR} port=${4:-$PORT}; [ "$1" = iser ] && iface=lab-iser
	case $addr in *:*) addr="[$addr]" ;; esac
	iscsiadm -m node -o new -T "$2" -p "$addr:$port,1" -I $iface >/dev/null || fail "cannot make a node record"
	iscsiadm -m node -T "$2" -p "$addr:$port" -I $iface --login >"$OUT/login.log" 2>&1 || fail "$1 login to $2: $(tail -1 "$OUT/login.log")"
}
logout() { # TRANSPORT IQN [ADDR]
	local iface=default addr=${3:-$ADDR}; [ "$1" = iser ] && iface=lab-iser
	case $addr in *:*) addr="[$addr]" ;; esac
	iscsiadm -m node -T "$2" -p "$addr:$PORT" -I $iface --logout >"$OUT/logout.log" 2>&1 || fail "logout: $(tail -1 "$OUT/logout.log")"
}
# disks IQN [TRANSPORT]: "LUN DEVICE" lines of the sessions with a target.
disks() {
	iscsiadm -m session -P 3 2>/dev/null | awk -v t="$1" -v tr="${2:-}" '
		/^Target:/ {on = ($2 == t)} /Iface Transport:/ {ok = (tr == "" || $3 == tr)}
		/Lun:/ {lun = $NF} /Attached scsi disk/ {if (on && ok) print lun, "/dev/" $4}'
}
# disk_of IQN LUN [TRANSPORT]: waits for the block device and sets DISK.
disk_of() {
	local end=$(( $(date +%s) + 15 * SLOW ))
	while :; do
		DISK=$(disks "$1" "${3:-}" | awk -v l="$2" '$1 == l {print $2; exit}')
		[ -n "$DISK" ] && [ -b "$DISK" ] && [ "$(blockdev --getsize64 "$DISK" 2>/dev/null)" -gt 0 ] && return
		[ "$(date +%s)" -lt $end ] || fail "no disk for $1 LUN $2"
		sleep 0.2
	done
}
# fio_verify DISK [OPTIONS...]: mixed sizes, depth 32, every block checked by CRC; fails on any error.
fio_verify() {
	local d=$1; shift
	fio --name=verify --filename="$d" --ioengine=libaio --direct=1 --rw=randrw --bsrange=4k-1m --bs_unaligned=0 --blockalign=4k \
		--iodepth=32 --eta=never --verify=crc32c --verify_fatal=1 --verify_backlog=64 --size=64m --randseed=7 --output="$OUT/fio-$(basename "$d").log" "$@"
}
stats() { # one line of counters from the daemon
	local n; n=$(grep -c '"\?stats' "$OUT/iserd.log"); kill -USR1 "$ISERD_PID"
	local end=$(( $(date +%s) + 5 * SLOW ))
	until [ "$(grep -c 'stats' "$OUT/iserd.log")" -gt "$n" ]; do [ "$(date +%s)" -lt $end ] || fail "no counters after SIGUSR1"; sleep 0.1; done
	grep 'stats' "$OUT/iserd.log" | tail -1
}
stat_of() { stats | grep -oE "\"$1\": ?[0-9]+" | grep -oE '[0-9]+$' | head -1; }
